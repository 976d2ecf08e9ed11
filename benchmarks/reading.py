"""Reading JPEG files with worker processes: `TorchTrainer` beside a bare `DataLoader` with as many.

    python benchmarks/reading.py [--workers N] [--images N] [--batch-size N] [--batches N] [--rounds N]
    python benchmarks/reading.py --texts [--workers 0] [--batch-size 512] [--batches N] [--rounds N]

Pictures of 256 x 256 pixels are made in a temporary folder. Both sides decode them, crop them to 224 pixels by chance,
flip them and make them numbers, with torchvision; neither trains. In each round, in turn, both read some batches
from the middle of an epoch, where the workers are ahead already. The ratio of a round is that of pictures a second, of
times that follow each other; the middle one is judged: at least 0.9.

With `--texts`, samples are 64 tokens out of one array: reading one is next to nothing, and nothing is drawn. At least
0.5 times there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader

from stagetree import TorchTrainer
from stagetree.vision import import_torchvision

import_torchvision()
from torchvision.datasets import ImageFolder  # noqa: E402 - only now can it be imported beside any torch
from torchvision.transforms import v2  # noqa: E402

PIXELS = 256
WANTED, WANTED_OF_TEXTS = 0.9, 0.5


class Reader(TorchTrainer):
    """Reads and learns nothing. A step is a batch."""

    name = "reader"

    def __init__(self, data: Any, batch_size: int, workers: int) -> None:
        super().__init__(
            seed=0,
            device="cpu",
            model=nn.Linear(1, 1),
            train_data=data,
            valid_data=data,
            batches_per_step=1,
            num_workers=workers,
        )
        self.batch_size, self.read = batch_size, 0

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def train_batch(self, batch: Any) -> None:
        self.read += size(batch)


def size(batch: Any) -> int:
    return len(batch if isinstance(batch, Tensor) else batch[0])


def draw(folder: Path, images: int) -> None:
    """Blurred noise: pictures with detail, and about as many bytes as photographs of their size."""
    chance = np.random.default_rng(0)
    (folder / "all").mkdir()
    for number in range(images):
        noise = Image.fromarray(chance.integers(256, size=(PIXELS, PIXELS, 3), dtype=np.uint8))
        noise.filter(ImageFilter.GaussianBlur(1)).save(folder / "all" / f"{number:05}.jpg", quality=85)


def pictures(folder: Path) -> Any:
    numbers = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)
    cropped = v2.RandomResizedCrop(224, antialias=True)
    return ImageFolder(folder, v2.Compose([v2.ToImage(), cropped, v2.RandomHorizontalFlip(), *numbers]))


class Texts:
    """Pieces of one long text."""

    def __init__(self, samples: int) -> None:
        self._tokens, self._samples = torch.arange(samples + 64), samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Tensor:
        return self._tokens[index : index + 64]


@contextmanager
def bare(data: Any, given: argparse.Namespace) -> Iterator[Callable[[], int]]:
    """What reads one batch of a bare loader, and says how many pictures it has."""
    batches = iter(DataLoader(data, given.batch_size, shuffle=True, num_workers=given.workers))
    yield lambda: size(next(batches))


@contextmanager
def ours(data: Any, given: argparse.Namespace) -> Iterator[Callable[[], int]]:
    """The same of a trainer."""
    trainer = Reader(data, given.batch_size, given.workers)
    trainer.setup({"lr": 0.1})

    def read() -> int:
        before = trainer.read
        trainer.train()
        return trainer.read - before

    yield read
    trainer.close()


def rate(way: Callable[..., AbstractContextManager[Callable[[], int]]], data: Any, given: argparse.Namespace) -> float:
    """Pictures a second, once the workers are ahead."""
    with way(data, given) as read:
        for _ in range(given.batches // 2):
            read()
        begun = time.perf_counter()
        return sum(read() for _ in range(given.batches)) / (time.perf_counter() - begun)


def measure(data: Any, given: argparse.Namespace) -> list[float]:
    """The ratio of each round."""
    ratios = []
    for number in range(1, given.rounds + 1):
        theirs, mine = rate(bare, data, given), rate(ours, data, given)
        ratios.append(mine / theirs)
        print(f"round {number}: DataLoader {theirs:.0f} samples/s, TorchTrainer {mine:.0f}: {ratios[-1]:.3f}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--texts", action="store_true", help="short texts in memory instead of pictures")
    parser.add_argument("--images", type=int, default=512, help="different ones")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=24, help="timed in each round")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    wanted = WANTED_OF_TEXTS if given.texts else WANTED
    torch.set_num_threads(1)
    enough = 2 * given.batches * given.batch_size  # none meets the end of an epoch
    with tempfile.TemporaryDirectory() as folder:
        if given.texts:
            middle = statistics.median(measure(Texts(enough + given.batch_size), given))
        else:
            draw(Path(folder), given.images)
            data: ConcatDataset[Any] = ConcatDataset([pictures(Path(folder))] * (enough // given.images + 1))
            middle = statistics.median(measure(data, given))
    print(
        f"{given.workers} workers: TorchTrainer reads {middle:.3f} times as fast as a bare DataLoader, wanted {wanted}"
    )
    sys.exit(middle < wanted)


if __name__ == "__main__":
    main()
