"""How long a preview takes: `python benchmarks/preview.py`.

A grid of 10,000 trials, and as many that were drawn at random and share nothing. People wait for it: seconds at most.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from app.simulation.preview import preview
from stagetree.spec import StudySpec


def grid(trials: int) -> dict[str, Any]:
    lrs = [
        {"family": "multistep", "init": 0.1 * rate, "milestones": [20 + first, 60], "gamma": 0.1}
        for rate in range(1, 11)
        for first in range(10)
    ]
    sizes = [{"family": "values", "values": [64, 128], "milestones": [24 + size]} for size in range(trials // len(lrs))]
    return {"space": {"lr": lrs, "bs": sizes}, "tuner": {"kind": "grid", "max_steps": 100}}


def decays(trials: int) -> dict[str, Any]:
    """One trunk: warm-up, stable, and a decay that begins anywhere."""
    stable = {"choice": list(range(100, 1100))}
    lr = {"family": "wsd", "peak": 0.1, "warmup": 50, "stable_until": stable, "decay": {"randint": [10, 100]}}
    return {"space": {"lr": lr}, "tuner": {"kind": "random", "num_trials": trials, "max_steps": 1200}}


def random(trials: int) -> dict[str, Any]:
    lr = {"family": "multistep", "init": {"loguniform": [1e-4, 1]}, "milestones": [30, 60], "gamma": 0.1}
    return {"space": {"lr": lr}, "tuner": {"kind": "random", "num_trials": trials, "max_steps": 100}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=8)
    arguments = parser.parse_args()
    for shape in (grid, decays, random):
        study = {"name": "study", "trainer": "digits", "metric": "accuracy", "mode": "max"}
        spec = StudySpec.from_dict({**study, **shape(arguments.trials)})
        before = time.perf_counter()
        found = preview(spec, slots=arguments.slots)
        print(f"{shape.__name__:<8} {time.perf_counter() - before:6.2f} s  {found}")


if __name__ == "__main__":
    main()
