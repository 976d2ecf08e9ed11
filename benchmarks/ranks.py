"""Several ranks: the tree's sum beside stock `all_reduce`, learning by shards beside stock DDP, and FSDP2 by both sums.

    python benchmarks/ranks.py [--ranks K] [--mebibytes N] [--rounds N] [--batch N] [--width N] [--device cpu|cuda]

On gloo, or on NCCL where `--device cuda` has a GPU for each rank. All of it in one run, in K processes with one thread
each; in each round, in turn, both sides do the same work. A ratio is of times that follow each other; the middle one of
all rounds is shown, with the least and the most. The sum is of one tensor; the step is forward, backward, sum and AdamW
of a small convolutional network, for V = K shards, which is the same work as DDP's, and for V = 8; "sums early" begins
to add up during the last backward pass, as is done on GPUs, and not when it is over. With `--ranks 1`, "no shards" is
the step of a study that says nothing of ranks, beside a loop by hand in DDP's wrapper. The last is the same step with
parameters that are divided: by a reduce-scatter in the tree's order, beside torch's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.runtime.check import run_in_ranks
from stagetree.trainer.ranks import summing
from stagetree.trainer.ranks.group import here

PIXELS = 16


class Net(nn.Sequential):
    def __init__(self, width: int) -> None:
        first = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        then = [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
        super().__init__(*first, *then, nn.Flatten(), nn.Linear(16 * width, 256), nn.ReLU(), nn.Linear(256, 10))


def data(batch: int) -> TensorDataset:
    samples = 4 * batch
    return TensorDataset(torch.randn(samples, 3, PIXELS, PIXELS), torch.randint(0, 10, (samples,)))


class Sharded(TorchTrainer):
    name = "sharded"

    def __init__(self, *, seed: int, device: str, width: int, batch: int, shards: int | None) -> None:
        model, train = Net(width), data(batch)
        settings: dict[str, Any] = {"batches_per_step": 1, "shards": shards}
        super().__init__(seed=seed, device=device, model=model, train_data=train, valid_data=train, **settings)

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: Any) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])


def sharded(given: argparse.Namespace, shards: int | None, device: str, parallel: str = "tree") -> Callable[[], None]:
    """parallel: as of a plan."""
    here().parallel = parallel
    trainer = Sharded(seed=0, device=device, width=given.width, batch=given.batch, shards=shards)
    trainer.setup({"lr": 0.001, "bs": given.batch})
    return trainer.train


def early(step: Callable[[], None], size: int) -> Callable[[], None]:
    """A step that sends buckets of this many bytes during its last backward pass."""

    def timed() -> None:
        summing.EARLY_BYTES = dict.fromkeys(("cpu", "cuda"), size)
        step()

    return timed


def stock(given: argparse.Namespace, device: str) -> Callable[[], None]:
    model = DistributedDataParallel(Net(given.width).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    images, labels = (each.to(device) for each in data(given.batch).tensors)
    mine = slice(here().rank, given.batch, here().world)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()

    return step


def measure_in_turn(sides: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, list[float]]:
    """Milliseconds of each, by round."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 2):  # the first two warm up
        for name, side in sides.items():
            here().barrier()
            begun_at = time.perf_counter()
            side()
            if device != "cpu":
                torch.cuda.synchronize()
            here().barrier()
            if number >= 2:
                found[name].append(1000 * (time.perf_counter() - begun_at))
    return found


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """In each rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cpu" if given.device == "cpu" else f"cuda:{here().rank}"
    if device != "cpu":
        torch.cuda.set_device(device)
    flat = torch.randn(given.mebibytes * 2**18, device=device)
    sums: dict[str, Callable[[], None]] = {
        "tree": lambda: here().across([flat.clone()]) and None,
        "all_reduce": lambda: dist.all_reduce(flat.clone()) and None,
    }
    steps = {
        f"V = {given.ranks}": early(sharded(given, given.ranks, device), 0),
        "sums early": early(sharded(given, given.ranks, device), 2**23),
        "V = 8": sharded(given, max(8, given.ranks), device),
        "DDP": stock(given, device),
    }
    if given.ranks == 1:
        steps["no shards"] = sharded(given, None, device)
    divided = {
        f"V = {given.ranks}": sharded(given, given.ranks, device, "fsdp"),
        "V = 8": sharded(given, max(8, given.ranks), device, "fsdp"),
        "FSDP2": sharded(given, None, device, f"fsdp:{given.ranks}"),
    }
    return {
        "sum": measure_in_turn(sums, given.rounds, given.device),
        "step": measure_in_turn(steps, given.rounds, given.device),
        "fsdp": measure_in_turn(divided, given.rounds, given.device),
    }


def show(what: str, found: dict[str, list[float]], base: str) -> None:
    for name, times in found.items():
        ratios = [mine / other for mine, other in zip(times, found[base], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} times {base}, {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{what:5} {name:10} {statistics.median(times):8.1f} ms   {ratio if name != base else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"ranks": 2, "mebibytes": 16, "rounds": 15, "batch": 128, "width": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = run_in_ranks(lambda: measure(given), given.ranks, given.device)
    if given.json:
        json.dump(found, sys.stdout)
        return
    where = f"{given.ranks} ranks on {given.device}, load {os.getloadavg()[0]:.0f}"
    print(f"{where}, {given.mebibytes} MiB, batch {given.batch}")
    show("sum", found["sum"], "all_reduce")
    show("step", found["step"], "DDP")
    show("fsdp", found["fsdp"], "FSDP2")


if __name__ == "__main__":
    main()
