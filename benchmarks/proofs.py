"""What proofs and audits cost: the same study with them and without, in turn.

    python benchmarks/proofs.py [--rounds N] [--trials N]

Two studies: the reference workload (see `reference.py`), whose budget is 3 % more, and trials of nothing that share
nothing (see `small_study.py`), whose budget is 1 s more for 400. Both are whole commands, timed from outside; beside
the clock stands the CPU time of all processes. Each round is a pair, and the median of the pairs is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import reference
import small_study

Cost = tuple[float, float]
"""Seconds on the clock, and of CPU in all processes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=400)
    arguments = parser.parse_args()
    pairs = compared("reference", arguments.rounds, digits)
    clock, cpu = (statistics.median(with_proofs[i] / without[i] for with_proofs, without in pairs) for i in (0, 1))
    print(f"reference: {clock:.3f} times as long, {cpu:.3f} times the CPU time, budget 1.03\n")
    pairs = compared("nothing", arguments.rounds, lambda folder: small_study.run(folder, arguments.trials))
    clock, cpu = (statistics.median(with_proofs[i] - without[i] for with_proofs, without in pairs) for i in (0, 1))
    budget = arguments.trials / 400
    print(f"{arguments.trials} trials of nothing: {clock:+.2f} s, {cpu:+.2f} s of CPU, budget {budget:+.2f} s")


def compared(name: str, rounds: int, study: Callable[[Path], Cost]) -> list[tuple[Cost, Cost]]:
    """What a run with proofs costs, and one without, in each round; the one that begins changes."""
    pairs = []
    for number in range(rounds):
        costs = {proofs: cost(study, proofs=proofs) for proofs in ((True, False) if number % 2 else (False, True))}
        pairs.append((costs[True], costs[False]))
        told = "   ".join(
            f"{'with' if each else 'without'} {costs[each][0]:6.2f} s, CPU {costs[each][1]:6.2f} s" for each in costs
        )
        print(f"{name}, round {number + 1}: {told}", flush=True)
    return pairs


def cost(study: Callable[[Path], Cost], *, proofs: bool) -> Cost:
    """Of a study in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, switched(proofs=proofs):
        return study(Path(folder))


def digits(folder: Path) -> Cost:
    """Run the reference workload."""
    command = [
        "run",
        str(reference.STUDY),
        "--slots",
        str(reference.SLOTS),
        "-o",
        "json",
        "--dir",
        str(folder / "kept"),
    ]
    _, *seconds = small_study.watched(command, folder)
    return seconds[0], seconds[1]


@contextmanager
def switched(*, proofs: bool) -> Iterator[None]:
    """Commands begun meanwhile make proofs, or none."""
    os.environ["STAGETREE_PROOFS"] = str(int(proofs))
    try:
        yield
    finally:
        del os.environ["STAGETREE_PROOFS"]


if __name__ == "__main__":
    main()
