"""Tasks for benchmarks of searches: what each configuration comes to after any number of steps, and how good that is.

`Recorded` tasks are curves of real training: TaskSet (Metz et al. 2020, 1,000 configurations of Adam with 51 validation
losses each, in a folder that the caller names), `charlm` and `digits` (in `benchmarks/data`). A configuration that was
not recorded has the mean of the curves of its nearest neighbours, the nearer the more. `Schedules` of `charlm` were all
recorded. `Law` tasks are functions of the
whole schedule: the laws in `benchmarks/laws.py`, and the noisy quadratic of Zhang et al. 2019. `Bowl` is a toy whose
good region is given.

All values are losses. A regret is the distance of a loss from the best there is, in parts of the distance from there to
the median of random trials of full length.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import hypot, log10, sqrt
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Protocol

import laws
import numpy as np
import numpy.typing as npt

from stagetree.sequences import Sequence, parse
from stagetree.space import Space

DATA = Path(__file__).parent / "data"
Numbers = npt.NDArray[np.float64]
Hp = Mapping[str, Any]
"""The sequences of a trial, as in its study's log."""


class Task(Protocol):
    """steps: of a trial of full length. scale: the best loss, and the median of random trials."""

    name: str
    space: dict[str, Any]
    steps: int

    @property
    def scale(self) -> tuple[float, float]: ...

    def loss(self, hp: Hp, step: int) -> float: ...


def regret(task: Task, loss: float) -> float:
    """Capped at 2: what diverged is no worse than that."""
    best, middle = task.scale
    return (min(loss, best + 2 * (middle - best)) - best) / (middle - best)


# ------------------------------------------------------------------------------------------------ recorded curves

NEAREST = 12
ADAM = {
    "one_minus_beta1": (1e-4, 1.0),
    "one_minus_beta2": (1e-6, 1.0),
    "epsilon": (1e-10, 1e3),
    "exponential_decay": (1e-6, 1e-3),
    "l1": (1e-8, 1e1),
    "l2": (1e-8, 1e1),
    "learning_rate": (1e-8, 1e1),
    "linear_decay": (1e-7, 1e-4),
}
"""The space of TaskSet: eight numbers on a logarithmic scale."""


class Recorded:
    """Curves for any configuration, from the recorded ones nearby.

    known: [n, p], by parameter of the space in its order, on its scale from 0 to 1. losses: [n, steps + 1], from 0.
    """

    def __init__(self, name: str, space: dict[str, Any], known: Numbers, losses: Numbers) -> None:
        self.name, self.space, self.steps = name, space, losses.shape[1] - 1
        self._known, self._losses = known, losses
        self._curves = dict[tuple[float, ...], Numbers]()

    @cached_property
    def scale(self) -> tuple[float, float]:
        return float(self._losses[:, -1].min()), searched_scale(self)[1]

    def loss(self, hp: Hp, step: int) -> float:
        values = tuple(float(hp[name]["value"]) for name in self.space)
        if values not in self._curves:
            self._curves[values] = self._curve(unit_point(self.space, values))
        return float(self._curves[values][step])

    def _curve(self, place: Numbers) -> Numbers:
        far = np.linalg.norm(self._known - place, axis=1)
        nearest = np.argsort(far)[: min(NEAREST, len(far) // 10)]
        weights = 1 / (far[nearest] + 1e-9)
        return np.asarray(weights @ self._losses[nearest] / weights.sum())


def unit_point(space: Mapping[str, Any], values: tuple[float, ...]) -> Numbers:
    """The place of these values in the unit cube."""
    return np.array([_share(one, value) for one, value in zip(space.values(), values, strict=True)])


def _share(one: Any, value: float) -> float:
    if isinstance(one, list):
        return float(one.index(value) / (len(one) - 1))
    (kind, (low, high)) = next(iter(one.items()))
    if kind == "loguniform":
        low, high, value = log10(low), log10(high), log10(value)
    return float((value - low) / (high - low))


def taskset(path: Path) -> Recorded:
    """A loss that is not finite, or worse than that of the untrained model, counts as that."""
    data = np.load(path)
    known = np.array(data["hp"], float)
    known[:, :2] = 1 - known[:, :2]  # beta1 and beta2
    space: dict[str, Any] = {name: {"loguniform": [low, high]} for name, (low, high) in ADAM.items()}
    losses = data["valid_loss"].astype(float)
    untrained = float(np.nanmedian(losses[:, 0]))
    losses = np.where(np.isfinite(losses), np.minimum(losses, untrained), untrained)
    low, high = (np.log10([ends[end] for ends in ADAM.values()]) for end in (0, 1))
    name = path.stem.removeprefix("taskset_imdb_").split("_bs")[0]
    return Recorded(name, space, (np.log10(known) - low) / (high - low), losses)


def example(name: str) -> Recorded:
    """`charlm` or `digits`, whose curves are in `benchmarks/data`; an accuracy counts as 1 minus it."""
    import yaml

    space = yaml.safe_load((DATA / f"{name}.yaml").read_text())["space"]
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as file:
        head, *rows = map(json.loads, file)
    known = np.array([unit_point(space, tuple(row["hp"][each]["value"] for each in space)) for row in rows])
    values = np.array([row["values"] for row in rows], float)
    losses = values if head["mode"] == "min" else 1 - values
    untrained = losses[:, :1].max(axis=0, keepdims=True).repeat(len(losses), axis=0)
    return Recorded(name, space, known, np.hstack([untrained, np.minimum(np.nan_to_num(losses, nan=1e9), untrained)]))


class Schedules:
    """What `examples/charlm` came to, for each of 1,152 schedules: trunks and their decays. Known at their end only."""

    name, steps = "schedules", 40

    def __init__(self) -> None:
        recorded = json.loads((DATA / "charlm_trunks.json").read_text())
        self.space: dict[str, Any] = recorded["space"]
        self._losses = {tuple(key): float(value) for *key, value in recorded["values"]}

    @cached_property
    def scale(self) -> tuple[float, float]:
        return min(self._losses.values()), median(self._losses.values())

    def loss(self, hp: Hp, step: int) -> float:
        lr = hp["lr"]
        key = (lr["peak"], lr["decay"], lr["shape"], lr["final"], hp["bs"]["value"], hp["weight_decay"]["value"])
        return self._losses[key] if step == self.steps else 10.0


# ------------------------------------------------------------------------------------------------ laws

SCHEDULES: dict[str, Any] = {
    "lr": {
        "family": "wsd",
        "peak": {"loguniform": [0.1, 4]},
        "warmup": {"randint": [1, 20]},
        "decay": {"randint": [4, 60]},
        "final": {"uniform": [0, 0.1]},
        "shape": {"choice": ["linear", "cosine", "sqrt"]},
    },
    "weight_decay": {"uniform": [0, 1]},
    "mix": {"family": "values", "values": [0.5, {"uniform": [0, 1]}], "milestones": [80]},
}


class CurveTask:
    """A task whose losses are computed for all steps of a configuration at once."""

    space: dict[str, Any]
    steps: int
    name: str
    _last: tuple[Hp, Numbers] | None = None

    @cached_property
    def scale(self) -> tuple[float, float]:
        return searched_scale(self)

    def loss(self, hp: Hp, step: int) -> float:
        if self._last is None or self._last[0] != hp:
            self._last = hp, self._curve(hp)
        return float(self._last[1][step - 1])

    def _curve(self, hp: Hp) -> Numbers:
        """[steps]: the loss after each."""
        raise NotImplementedError


class Law(CurveTask):
    """A task of `laws.Task`. `mix` is a mixture of data that changes at step 80, and counts by its last value."""

    space, steps = SCHEDULES, 100

    def __init__(self, name: str, seed: int) -> None:
        self.name, self._task = name, laws.Task(name, seed)

    def _curve(self, hp: Hp) -> Numbers:
        others = {name: parse(hp[name]) for name in ("weight_decay", "mix")}
        last = {name: number(sequence, self.steps - 1) for name, sequence in others.items()}
        rates = parse(hp["lr"])
        return self._task.losses(np.array([number(rates, at) for at in range(self.steps)]), last)


def number(sequence: Sequence, step: int) -> float:
    value = sequence.at(step)
    assert isinstance(value, int | float)
    return float(value)


class Quadratic(CurveTask):
    """The noisy quadratic of Zhang et al. 2019 (arXiv 1907.04164, eq. 4): curvatures by a power law, and noise.

    The risk follows its recursion exactly: E[x_i^2] <- (1 - lr h_i)^2 E[x_i^2] + lr^2 h_i s^2 / batch. A step stands
    for `INNER` of them. Rates warm up and decay, which pays because of the noise. Losses are logarithms of the risk.
    """

    INNER, DIMENSIONS, NOISE = 20, 100, 0.3
    name, steps = "quadratic", 60

    def __init__(self, seed: int) -> None:
        self.space = {
            "lr": {
                "family": "wsd",
                "peak": {"loguniform": [0.001, 3]},
                "warmup": {"randint": [0, 12]},
                "decay": {"randint": [2, 40]},
                "final": {"loguniform": [0.0001, 0.1]},
            },
            "batch": {"loguniform": [1, 16]},
        }
        chance = Random(f"{seed}/quadratic")
        self._curvatures = np.arange(1, self.DIMENSIONS + 1) ** -(0.8 + 0.6 * chance.random())
        self._gradient_noise = self.NOISE * 4 ** chance.random()

    def _curve(self, hp: Hp) -> Numbers:
        """A larger batch has less noise, and costs as much as the smaller steps that it needs."""
        rates, batch = parse(hp["lr"]), number(parse(hp["batch"]), 0)
        curvatures, squares, losses = self._curvatures, np.ones(self.DIMENSIONS), np.empty(self.steps)
        inner = max(1, round(self.INNER / sqrt(batch)))
        for step in range(self.steps):
            rate = number(rates, step)
            kept, added = (1 - rate * curvatures) ** 2, rate**2 * curvatures * self._gradient_noise / batch
            sums = np.where(kept == 1, inner, (1 - kept**inner) / np.where(kept == 1, 1, 1 - kept))
            squares = np.minimum(kept**inner * squares + added * sums, 1e6)
            losses[step] = float(np.log(curvatures @ squares / 2))
        return losses


def searched_scale(task: Task) -> tuple[float, float]:
    """The best loss that a long local search finds, and the median of 300 random trials."""
    chance = Random("scale")
    trials = sorted((_near(task, chance, {}, 1.0) for _ in range(300)), key=lambda each: each[0])
    best = trials[0]
    for radius in np.geomspace(0.4, 0.01, 500):
        best = min(best, _near(task, chance, best[1], float(radius)), key=lambda each: each[0])
    return best[0], median(loss for loss, _ in trials)


def _near(task: Task, chance: Random, base: Mapping[str, float], radius: float) -> tuple[float, dict[str, float]]:
    """The loss of a trial around `base`, whose values are shares from 0 to 1, and its own; of a random one without."""
    shares = dict[str, float]()

    def choose(place: str, free: Any) -> Any:
        moved = base[place] + radius * (2 * chance.random() - 1) if place in base else chance.random()
        shares[place] = min(0.999999, max(0.0, moved))
        return free.at(shares[place])

    hp = {name: each.to_json() for name, each in Space(task.space, steps=task.steps).compose(choose).items()}
    return task.loss(hp, task.steps), shares


# ------------------------------------------------------------------------------------------------ a known good region


@dataclass
class Bowl:
    """The loss grows with the distance from the best values, which the seed moves, and falls or rises with steps.

    A quarter of the space is good: at most a decade from the best value in both.
    """

    name: str
    seed: int
    steps: int = 27

    def __post_init__(self) -> None:
        chance = Random(f"{self.seed}/bowl")
        self.space: dict[str, Any] = {"lr": {"loguniform": [1e-4, 1.0]}, "wd": {"loguniform": [1e-5, 1e-1]}}
        self.best = {"lr": -3 + 2 * chance.random(), "wd": -4 + 2 * chance.random()}

    @cached_property
    def scale(self) -> tuple[float, float]:
        return searched_scale(self)

    def loss(self, hp: Hp, step: int) -> float:
        return hypot(*self.distances(hp)) + (sqrt(step) if self.name == "rising" else 3 / sqrt(step))

    def distances(self, hp: Hp) -> list[float]:
        """In decades, by hyper-parameter."""
        return [abs(log10(hp[name]["value"]) - best) for name, best in self.best.items()]


MakeTask = Callable[[int], Task]
"""A task of a seed; recorded ones have no seed."""

ENDS_ONLY = "schedules"
"""A task with final values only: not for tuners that stop trials."""

MADE: dict[str, MakeTask] = {
    ENDS_ONLY: cache(lambda seed: Schedules()),
    "charlm": cache(lambda seed: example("charlm")),
    "digits": cache(lambda seed: example("digits")),
    "annealing": cache(lambda seed: Law("annealing", seed)),
    "multi_power": cache(lambda seed: Law("multi_power", seed)),
    "quadratic": cache(Quadratic),
    "falling": cache(lambda seed: Bowl("falling", seed)),
    "rising": cache(lambda seed: Bowl("rising", seed)),
}


def recorded_tasks(folder: Path | None) -> Iterator[tuple[str, MakeTask]]:
    """The tasks of TaskSet in a folder, by name."""
    for path in sorted(folder.glob("taskset_*.npz")) if folder else ():
        task = taskset(path)
        yield task.name, partial(_same, task)


def _same(task: Task, seed: int) -> Task:
    return task
