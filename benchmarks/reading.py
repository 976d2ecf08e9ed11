"""Reading JPEG files with worker processes: `TorchTrainer` beside a bare `DataLoader` with as many.

    python benchmarks/reading.py [--workers N] [--images N] [--batch-size N] [--epochs N] [--rounds N]

Pictures of 256 x 256 pixels are made in a temporary folder. Both sides decode them, crop them to 224 pixels by chance,
flip them and make them numbers, with torchvision; neither trains. In each round, in turn, both go through all pictures
so many times, with workers that live on; one pass before that is not counted. The ratio of a round is that of pictures
a second, of times that follow each other; the middle one is judged: at least 0.9.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stagetree import TorchTrainer
from stagetree.vision import import_torchvision

import_torchvision()
from torchvision.datasets import ImageFolder  # noqa: E402 - only now can it be imported beside any torch
from torchvision.transforms import v2  # noqa: E402

PIXELS = 256
WANTED = 0.9


class Reader(TorchTrainer):
    """Reads and learns nothing. A step is a pass over the data."""

    name = "reader"

    def __init__(self, data: Any, batch_size: int, workers: int) -> None:
        super().__init__(
            seed=0, device="cpu", model=nn.Linear(1, 1), train_data=data, valid_data=data, num_workers=workers
        )
        self.batch_size, self.read = batch_size, 0

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def train_batch(self, batch: Any) -> None:
        self.read += len(batch[0])


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


def bare(data: Any, batch_size: int, workers: int) -> Callable[[], int]:
    """One pass of a bare loader, with workers that live on; how many pictures it read."""
    loader: DataLoader[Any] = DataLoader(
        data, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: sum(len(batch[0]) for batch in loader)


def ours(data: Any, batch_size: int, workers: int) -> tuple[Callable[[], int], Callable[[], None]]:
    """The same of a trainer; and what ends its workers."""
    trainer = Reader(data, batch_size, workers)
    trainer.setup({"lr": 0.1})

    def read() -> int:
        before = trainer.read
        trainer.train()
        return trainer.read - before

    return read, trainer.close


def rate(read: Callable[[], int], epochs: int) -> float:
    """Pictures a second."""
    begun = time.perf_counter()
    return sum(read() for _ in range(epochs)) / (time.perf_counter() - begun)


def measure(data: Any, given: argparse.Namespace) -> list[float]:
    """The ratio of each round."""
    ratios = []
    for number in range(given.rounds):
        alone = bare(data, given.batch_size, given.workers)
        alone()
        theirs = rate(alone, given.epochs)
        del alone  # and its workers: nobody reads beside the other
        read, close = ours(data, given.batch_size, given.workers)
        read()
        mine = rate(read, given.epochs)
        close()
        ratios.append(mine / theirs)
        print(f"round {number + 1}: DataLoader {theirs:.0f} pictures/s, TorchTrainer {mine:.0f}: {ratios[-1]:.3f}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), given.images)
        middle = statistics.median(measure(pictures(Path(folder)), given))
    print(
        f"{given.workers} workers: TorchTrainer reads {middle:.3f} times as fast as a bare DataLoader, wanted {WANTED}"
    )
    sys.exit(middle < WANTED)


if __name__ == "__main__":
    main()
