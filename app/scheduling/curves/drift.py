"""The last value plus what others still gained from there: the study's drift, as a kernel density estimate.

It is the strongest plain baseline there is for curves that are mostly flat. Two forms of it: each of the others counts
the same, or by how similar it was until then (the weights of Nadaraya 1964 and Watson 1964, with the width of the
nearest neighbours). Kernels are normal and as wide as the nearest gains of others are away (Breiman, Meisel and Purcell
1977, "Variable kernel estimates").
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.scheduling.curves.curve import Bend, Curve
from app.scheduling.curves.mixtures import Integers, Mixtures

Array = npt.NDArray[np.float64]

NEIGHBOURS = 4
"""A kernel reaches half-way to the gain that is this near among the others' gains."""
ALIKE = 4
"""A curve counts as similar up to about the distance of the curve that is this near."""
FINEST = 1e-4
"""Differences below this, in units, mean nothing."""
UNKNOWN = 0.3
"""Standard deviation, in units, of what a bend does of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Row:
    """A curve that something is to be said about, and which of the ended ones it is itself (-1: none)."""

    curve: Curve
    units: Array
    itself: int = -1

    def value(self, step: float) -> float:
        """Its value in units at a step, between evaluations along a straight line."""
        return float(np.interp(step, self.curve.steps, self.units)) if self.curve.steps else 0.0

    def until(self, step: float) -> Row:
        """What was known of it after this step."""
        number = bisect_right(self.curve.steps, step)
        past = Curve(self.curve.steps[:number], self.curve.values[:number], self.curve.bends)
        return Row(past, self.units[:number], self.itself)


@dataclass(frozen=True, slots=True)
class Kernels:
    """For some rows: how many peers each has, and what they foretell, once equally weighted, once by similarity.

    A row without peers has no kernel.
    """

    peers: Array
    plain: Mixtures
    similar: Mixtures


class Drift:
    """Curves that have ended, each with its own number, as an example to others. There may be none."""

    def __init__(self, ended: Sequence[Row] = ()) -> None:
        self.rows = ended
        self._last_step = np.array([row.curve.last_step for row in ended])
        self._marks_at: dict[float, Array] = {}
        self._values_at: dict[float, Array] = {}

    def at(self, rows: Sequence[Row], step: float) -> Kernels:
        """What the ended curves that went on to this step foretell of others that have not come to it."""
        reached, then = np.flatnonzero(self._last_step >= step).tolist(), self.values(step)
        groups: dict[tuple[int, int, tuple[Bend, ...]], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            now = row.curve.last_step
            groups[now, row.itself, row.curve.bends_within(now, step)].append(number)
        ahead = {now: [row.curve.bends_within(now, step) for row in self.rows] for now in {key[0] for key in groups}}
        answers = []
        for (now, itself, bends), numbers in groups.items():
            others = [i for i in reached if i != itself and ahead[now][i] == bends]
            peers = _Peers(self.marks(now)[others], then[others], now, bool(bends))
            answers.append(peers.kernels(numbers, [rows[number] for number in numbers]))
        return _kernels(answers, len(rows))

    def marks(self, now: float) -> Array:
        """The marks of all ended curves after this step."""
        if now not in self._marks_at:
            self._marks_at[now] = np.array([_marks(row, now) for row in self.rows]).reshape(-1, 2)
        return self._marks_at[now]

    def values(self, step: float) -> Array:
        """The values of all ended curves at this step, in units."""
        if step not in self._values_at:
            self._values_at[step] = np.array([row.value(step) for row in self.rows])
        return self._values_at[step]


class _Peers:
    """The ended curves that are an example to those that stand at some step: with the same bends ahead."""

    def __init__(self, marks: Array, then: Array, now: int, bend_ahead: bool) -> None:
        self._marks, self._now, self._number = marks, now, len(then)
        self._gains = then - marks[:, 0] if now >= 0 else then
        least = UNKNOWN / (1 + len(then)) if bend_ahead or now < 0 else FINEST
        self._spreads = np.maximum(0.5 * nearness(self._gains, NEIGHBOURS), least)

    def kernels(self, numbers: Sequence[int], rows: Sequence[Row]) -> _Answer:
        """Of some rows with these numbers."""
        own = np.array([_marks(row, self._now) for row in rows])
        size = (len(rows), self._number)
        return _Answer(
            np.repeat(numbers, self._number),
            (own[:, :1] + self._gains).ravel(),
            np.broadcast_to(self._spreads, size).ravel(),
            np.full(size, 1 / max(self._number, 1)).ravel(),
            self._alike(own).ravel(),
            [(number, self._number) for number in numbers],
        )

    def _alike(self, own: Array) -> Array:
        """How much each of the others counts for each row."""
        if self._now < 0 or not self._number:
            return np.full((len(own), self._number), 1 / max(self._number, 1))
        apart = np.abs(own[:, None] - self._marks)
        near = min(ALIKE, self._number) - 1
        width = np.partition(apart, near, axis=1)[:, near : near + 1] + FINEST
        logs = -0.5 * ((apart / width) ** 2).sum(axis=2)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


class _Answer(NamedTuple):
    row: Integers
    mean: Array
    spread: Array
    equal: Array
    alike: Array
    peers: list[tuple[int, int]]
    """Number of a row, and of its peers."""


def _marks(row: Row, now: float) -> tuple[float, float]:
    """What makes curves similar: where they are, and what they gained in the second half of the way there."""
    value = float(row.units[-1]) if now == row.curve.last_step >= 0 else row.value(now)
    return value, value - row.value(now / 2)


def nearness(values: Array, neighbours: int) -> Array:
    """How far from each value the one is that is this near among the others; the farthest where there are fewer."""
    neighbours = max(min(neighbours, len(values) - 1), 0)
    order = np.argsort(values, kind="stable")
    edge = np.full(neighbours, np.inf)
    padded = np.concatenate([-edge, values[order], edge])
    middle = padded[neighbours : len(padded) - neighbours]
    reach = np.full(len(values), np.inf)
    for below in range(neighbours + 1):
        low = padded[neighbours - below : neighbours - below + len(values)]
        high = padded[2 * neighbours - below : 2 * neighbours - below + len(values)]
        reach = np.minimum(reach, np.maximum(middle - low, high - middle))
    result = np.empty(len(values))
    result[order] = reach
    return result


def _kernels(answers: Sequence[_Answer], rows: int) -> Kernels:
    row, mean, spread, equal, alike, peers = zip(*answers, strict=True)
    counts = np.zeros(rows)
    for number, count in chain.from_iterable(peers):
        counts[number] = count
    where, means, spreads = np.concatenate(row).astype(np.int64), np.concatenate(mean), np.concatenate(spread)
    plain = Mixtures(where, np.concatenate(equal), means, spreads, rows)
    return Kernels(counts, plain, replace(plain, weight=np.concatenate(alike)))
