"""ASHA with TPE against Optuna's TPE with its successive halving, on recorded curves: which finds the better trial?

    python benchmarks/asha_tpe.py --data FOLDER [--seeds 12] [--steps 2000] [--jobs 2] [--only NAME]

FOLDER holds taskset_*.npz (TaskSet, Metz et al. 2020): for each task 1,000 configurations of Adam with 51 validation
losses each. The space is theirs: eight numbers on a logarithmic scale. A configuration that was not recorded has the
mean of the curves of its 12 nearest neighbours, the nearer the more; a loss that is not finite, or worse than that of
the untrained model, counts as that.

Both sides have one worker, the same rungs (1, 4, 16, 50 steps), the same seeds and the same number of steps. Printed
for each task is the mean over seeds of the regret: how far the best loss at any step that was trained is from the best
recorded one, in parts of the distance from there to the median of the recorded trials' best. The last column is ours
over Optuna's. At the end stand the means over tasks, and the difference with its standard error.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one process a run, and the arrays are small

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from math import inf, log10
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

RANGES = {
    "one_minus_beta1": (1e-4, 1.0),
    "one_minus_beta2": (1e-6, 1.0),
    "epsilon": (1e-10, 1e3),
    "exponential_decay": (1e-6, 1e-3),
    "l1": (1e-8, 1e1),
    "l2": (1e-8, 1e1),
    "learning_rate": (1e-8, 1e1),
    "linear_decay": (1e-7, 1e-4),
}
MOST, ETA = 50, 4
NEAREST = 12

Numbers = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="tasks with this in their name")
    arguments = parser.parse_args()
    print(f"{'task':<40} {'ours':>7} {'Optuna':>7} {'ratio':>6}")
    differences, means = list[float](), list[tuple[float, float]]()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for path in tasks(arguments.data, arguments.only):
            found = [
                list(pool.map(partial(side, path, arguments.steps), range(arguments.seeds))) for side in (ours, optunas)
            ]
            means.append((float(np.mean(found[0])), float(np.mean(found[1]))))
            differences += (np.array(found[0]) - np.array(found[1])).tolist()
            print(row(path.stem.removeprefix("taskset_imdb_"), *means[-1]), flush=True)
    print(row("all", *np.mean(means, axis=0)))
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    print(f"ours - Optuna's: {np.mean(differences):+.3f} +- {error:.3f} over {len(differences)} pairs of runs")


def tasks(folder: Path, only: str) -> Iterator[Path]:
    paths = [path for path in sorted(folder.glob("taskset_*.npz")) if only in path.name]
    if not paths:
        raise SystemExit(f"there is no taskset_*{only}*.npz in {folder}")
    yield from paths


def row(name: str, mine: float, theirs: float) -> str:
    return f"{name:<40} {mine:7.3f} {theirs:7.3f} {mine / theirs:6.2f}"


class Task:
    """Curves for any configuration, from the recorded ones nearby."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        known = np.array(data["hp"], float)
        known[:, :2] = 1 - known[:, :2]  # beta1 and beta2
        low, high = (np.log10([RANGES[name][end] for name in RANGES]) for end in (0, 1))
        self._low, self._width = low, high - low
        self._known = (np.log10(known) - low) / self._width
        losses = data["valid_loss"].astype(float)
        untrained = float(np.nanmedian(losses[:, 0]))
        self._losses = np.where(np.isfinite(losses), np.minimum(losses, untrained), untrained)
        bests = self._losses[:, 1:].min(axis=1)
        self._best, self._median = float(bests.min()), float(np.median(bests))
        self._curves: dict[tuple[float, ...], Numbers] = {}

    def loss(self, values: tuple[float, ...], step: int) -> float:
        """After a step; `values` in the order of `RANGES`."""
        if values not in self._curves:
            self._curves[values] = self._curve(values)
        return float(self._curves[values][step])

    def _curve(self, values: tuple[float, ...]) -> Numbers:
        place = (np.array([log10(value) for value in values]) - self._low) / self._width
        far = np.linalg.norm(self._known - place, axis=1)
        nearest = np.argsort(far)[:NEAREST]
        weights = 1 / (far[nearest] + 1e-9)
        return np.asarray(weights @ self._losses[nearest] / weights.sum())

    def regret(self, loss: float) -> float:
        return (loss - self._best) / (self._median - self._best)


@cache
def task(path: Path) -> Task:
    return Task(path)


def ours(path: Path, steps: int, seed: int) -> float:
    """The regret of an ASHA study with TPE."""
    curves, seen = task(path), [inf]

    def measure(node: Node, step: int) -> e.Metrics:
        values = tuple(float(node.hp[name]["value"]) for name in RANGES)
        way = range(node.start + 1, step + 1)
        seen[0] = min(seen[0], *(curves.loss(values, at) for at in way))
        return {"loss": curves.loss(values, step)}

    tuner = {"kind": "asha", "num_trials": steps, "min_steps": 1, "max_steps": MOST, "eta": ETA, "sampler": "tpe"}
    space = {name: {"loguniform": [low, high]} for name, (low, high) in RANGES.items()}
    fields = {"name": "asha-tpe", "trainer": "recorded", "metric": "loss", "mode": "min", "space": space}
    study = StudySpec.from_dict({**fields, "seed": seed, "tuner": tuner})
    simulator, name = Simulator(slots=1, measure=measure), StudyId("asha-tpe")
    simulator.submit(name, study.to_json())
    while simulator.plan.studies[name].executed < steps:
        simulator.advance()
    return curves.regret(seen[0])


def optunas(path: Path, steps: int, seed: int) -> float:
    """The regret of Optuna's search."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    curves, best, left = task(path), inf, steps
    while left > 0:
        trial = study.ask()
        values = tuple(trial.suggest_float(name, low, high, log=True) for name, (low, high) in RANGES.items())
        found, used = run(trial, [curves.loss(values, step) for step in range(1, min(MOST, left) + 1)])
        best, left = min(best, *found), left - used
        state = optuna.trial.TrialState.COMPLETE if used == MOST else optuna.trial.TrialState.PRUNED
        study.tell(trial, found[-1] if used == MOST else None, state=state)
    return curves.regret(best)


def run(trial: Any, losses: list[float]) -> tuple[list[float], int]:
    """The losses up to the step at which the pruner stops the trial, and how many those are."""
    for number, loss in enumerate(losses, start=1):
        trial.report(loss, number)
        if trial.should_prune():
            return losses[:number], number
    return losses, len(losses)


if __name__ == "__main__":
    main()
