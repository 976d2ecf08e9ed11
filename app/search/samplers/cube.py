"""A space as a unit cube, in which a model measures distances between configurations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np

from app.search.samplers.base import Values
from app.search.samplers.gaussian import Numbers
from stagetree.space import Choice, Choose, Distribution
from stagetree.space.distributions import Range

NEAR = 0.15
"""The standard deviation of the step to a neighbour, as a part of the range."""


class Cube:
    """A column for each numeric parameter, and one for each option of a choice. A choice among numbers is numeric: its
    rank.

    groups: the index of each column's parameter. places: the parameters, by name.
    """

    def __init__(self, free: Mapping[str, Distribution]) -> None:
        self._free, self.places = free, tuple(free)
        columns = [len(each.options) if isinstance(each, Choice) and not _order(each) else 1 for each in free.values()]
        self.width = sum(columns)
        self.groups = np.repeat(np.arange(len(columns)), columns)

    def points(self, samples: Iterable[Values]) -> Numbers:
        """[n, width]; a value without effect is in the middle of its range."""
        rows = [
            [u for place, free in self._free.items() for u in _columns(free, sample.get(place))] for sample in samples
        ]
        return np.array(rows, float).reshape(-1, self.width)


def near(chance: Random, sample: Values) -> Choose:
    """A neighbour of a sample; a missing value is sampled."""
    return lambda place, free: _move(chance, free, sample[place]) if place in sample else free.at(chance.random())


def _reflect(share: float) -> float:
    """The share inside the range. A step beyond an end comes back from it, as from a mirror.

    Cut off there, many candidates would lie exactly on the ends, of several parameters at once. A process is least
    certain there, so expected improvement would choose them again and again (Siivola et al. 2018, arXiv 1704.00963).
    """
    folded = abs(share) % 2
    return 2 - folded if folded > 1 else folded


def spread(key: str, number: int, count: int) -> Choose:
    """Sample `number` of `count` spread samples: each is in another part of every range (McKay et al. 1979)."""

    def choose(place: str, free: Distribution) -> Any:
        parts = list(range(count))
        chance = Random(f"{key}/{place}")
        shares = [chance.random() for _ in parts]
        order = sorted(parts, key=lambda part: (Random(f"{key}/{place}/{part}").random(), part))
        return free.at((order[number] + shares[number]) / count)

    return choose


def _order(free: Choice) -> list[int]:
    """The options by size if all are different numbers; else empty."""
    are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in free.options)
    if not are_numbers or len(set(free.options)) < len(free.options) or len(free.options) < 2:
        return []
    return sorted(range(len(free.options)), key=lambda number: free.options[number])


def _columns(free: Distribution, value: Any) -> list[float]:
    if not isinstance(free, Choice):
        return [0.5 if value is None else _share(free, value)]
    if order := _order(free):
        return [0.5 if value is None else order.index(value) / (len(order) - 1)]
    return [0.7 * (number == value) for number in range(len(free.options))]  # two options are 1 apart


def _share(free: Range, value: float) -> float:
    """The position of a value in its range, from 0 to 1, on the range's scale."""
    low, high, at = (math.log(each) if free.is_log else each for each in (free.low, free.high, value))
    return float((at - low) / (high - low))


def _deviation(chance: Random) -> float:
    """The step of a neighbour, zero every other time. Not `Random.gauss`, which may change with the version of
    Python.
    """
    return NEAR * NormalDist().inv_cdf(chance.random() or 0.5) * (chance.random() < 0.5)


def _move(chance: Random, free: Distribution, value: Any) -> Any:
    """The value, or a nearby one."""
    if not isinstance(free, Choice):
        share = _reflect(_share(free, value) + _deviation(chance))
        low, high = (math.log(each) if free.is_log else each for each in (free.low, free.high))
        return free.near(math.exp(low + share * (high - low)) if free.is_log else low + share * (high - low))
    if order := _order(free):
        distance = _deviation(chance) * (len(order) - 1)
        steps = math.copysign(max(1, round(abs(distance))), distance) if distance else 0
        return order[min(len(order) - 1, max(0, order.index(value) + int(steps)))]
    return free.at(chance.random()) if chance.random() < NEAR else value
