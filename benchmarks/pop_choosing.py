"""The workloads on which the rules of POP were chosen, none of which `benchmarks/pop.py` shows.

    python benchmarks/pop_choosing.py --data FOLDER [--orders 7]

Every second task of TaskSet, by name, as in `benchmarks/curves.py`, with a hundred other configurations than the ones
are shown; and made-up curves of two kinds: losses that stand still and fall again, and accuracies that come to the
target by chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pop

from app.simulation.traces import Trace, Workload

STEPS = np.arange(1, 41)
OTHERS = ((0, 1), (2, 1), (4, 2))
"""Number of a task by name, and which hundred of its curves, of which the first is shown."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder with taskset_*.npz")
    parser.add_argument("--orders", type=int, default=7)
    arguments = parser.parse_args()
    for workload in workloads(arguments.data):
        target = pop.target_of(workload)
        print(f"\n{workload.name}, target {target:.4g}")
        first = list[float]()
        for name in ("rank", "pop", "bandit", "asha"):
            times = pop.play(workload, pop.policies(workload, target)[name], target, 5, arguments.orders, 0.1)
            first = first or times
            print(pop.row(name, times, first), flush=True)


def workloads(folder: Path) -> Iterator[Workload]:
    paths = sorted(folder.glob("taskset_*.npz"))
    for number, part in OTHERS:
        yield pop.taskset(paths[number], part)
    for seed in (1, 2):
        yield Workload(f"stands still {seed}", "loss", "min", 40, tuple(standing_still(seed)))
        yield Workload(f"chance {seed}", "accuracy", "max", 40, tuple(random_accuracies(seed)))


def standing_still(seed: int) -> Iterator[Trace]:
    """60 losses that fall to 2.5, and by and by some of them further."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        fast = rng.lognormal(0.5, 0.8)
        until, drop, width = rng.uniform(6, 60) / fast**0.5, rng.uniform(0.3, 0.8), rng.lognormal(2.5, 0.4)
        late = drop * (1 - np.exp(-np.maximum(STEPS - until, 0) / width))
        values = 2.5 + rng.exponential(0.05) + 2 * np.exp(-STEPS * fast / 4) - late + rng.normal(0, 0.006, 40)
        yield trace(values, 60 * rng.uniform(0.6, 1.5))


def random_accuracies(seed: int) -> Iterator[Trace]:
    """100 accuracies of 360 images; many good configurations differ by less than their noise."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        end, half, noise = max(1 - rng.lognormal(-3.1, 0.7), 0.1), rng.lognormal(0.5, 1.0), rng.lognormal(-4.6, 0.5)
        values = 0.1 + (end - 0.1) * (1 - np.exp(-STEPS / half)) + rng.normal(0, noise, 40)
        yield trace(np.clip(np.round(values * 360) / 360, 0, 1), 60 * rng.uniform(0.6, 1.5))


def trace(values: npt.NDArray[np.float64], seconds: float) -> Trace:
    return Trace({}, tuple(map(int, STEPS)), tuple(map(float, values)), (seconds,) * len(values))


if __name__ == "__main__":
    main()
