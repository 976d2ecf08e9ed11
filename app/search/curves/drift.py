"""Predicts a curve by its last value plus the gains of other curves from there: a kernel density estimate.

This is the strongest simple baseline for curves that are mostly flat. It has two forms: all other curves count equally,
or by their similarity (the weights of Nadaraya 1964 and Watson 1964, with the width of the nearest neighbours).
Kernels are normal, and as wide as the distance of the nearest other gains (Breiman, Meisel and Purcell 1977, "Variable
kernel estimates").
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from app.search.curves.curve import Bend, Curve
from app.search.curves.mixtures import Array, Integers, Mixtures

NEIGHBOURS = 4
"""A kernel reaches halfway to the gain that is the fourth nearest."""
ALIKE = 4
"""Curves count as similar up to about the distance of the fourth nearest one."""
MANY = 20
"""If this many curves reached a step, they alone predict the gain until then; else shorter ones are completed."""
LEAST_MADE = 4
"""A leg of curves is used to complete others if this many curves have it."""
FINEST = 1e-4
"""Smaller differences, in units, mean nothing."""
UNKNOWN = 0.3
"""The standard deviation, in units, of the effect of an unknown bend."""


@dataclass(frozen=True, slots=True)
class Row:
    """A curve to predict, and its own index among the ended ones (-1: none)."""

    curve: Curve
    units: Array
    itself: int = -1

    def value(self, step: float) -> float:
        """Its value in units at a step, interpolated linearly between evaluations."""
        return float(np.interp(step, self.curve.steps, self.units)) if self.curve.steps else 0.0

    def truncate(self, step: float) -> Row:
        """The curve as of this step."""
        number = bisect_right(self.curve.steps, step)
        past = Curve(self.curve.steps[:number], self.curve.values[:number], self.curve.bends)
        return Row(past, self.units[:number], self.itself)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The number of peers of each row, and their predictions, weighted equally and by similarity.

    A row without peers has no kernel.
    """

    peers: Integers
    plain: Mixtures
    similar: Mixtures

    def pool(self, plain: Array, similar: Array) -> Mixtures:
        """Both predictions in one mixture, with these shares by row: their components differ in weight only."""
        row = self.plain.row
        return replace(self.plain, weight=plain[row] * self.plain.weight + similar[row] * self.similar.weight)


class Drift:
    """Ended curves, each with its index, as examples for others."""

    def __init__(self, ended: Sequence[Row] = ()) -> None:
        self.rows = ended
        self.last_step = np.array([row.curve.last_step for row in ended])
        self._is_ragged = len(set(self.last_step.tolist())) > 1
        self._lines = _Lines(ended)
        self._values_at: dict[float, Array] = {}

    def predict(self, rows: Sequence[Row], step: float) -> Kernels:
        """The kernels of the ended curves that went beyond each row's last step, at a later step."""
        groups: dict[tuple[int, tuple[Bend, ...], int], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            now = row.curve.last_step
            groups[now, row.curve.bends_within(now, step), row.itself if self._is_ragged else -1].append(number)
        answers = []
        for (now, bends, itself), numbers in groups.items():
            alike, then, unsure = self._examples_at(now, step, bends, itself)
            marks = self._marks(now)
            for some, examples in _examples([rows[number].itself for number in numbers], alike):
                peers = _Peers(marks[examples], then[examples], now, bool(bends), unsure[examples])
                which = [numbers[i] for i in some]
                answers.append(peers.kernels(which, np.array([_marks(rows[number]) for number in which])))
        return _kernels(answers, len(rows))

    def _examples_at(
        self, now: int, step: float, bends: tuple[Bend, ...], itself: int
    ) -> tuple[list[int], Array, Array]:
        """The indices of the example curves; the value of each curve at the step; and its standard deviation.

        The last two have an entry for each curve of the study. Completed curves are completed without `itself`.
        """
        ahead = [i for i in np.flatnonzero(self.last_step > now).tolist() if i != itself]
        alike = np.array([i for i in ahead if self.rows[i].curve.bends_within(now, step) == bends], dtype=np.int64)
        then, unsure = self.values(step), np.zeros(len(self.rows))
        reached = alike[self.last_step[alike] >= step]
        if len(reached) < min(MANY, len(alike)) and now >= 0:
            return self._complete(alike, step)
        return reached.tolist(), then, unsure

    def _complete(self, alike: Integers, step: float) -> tuple[list[int], Array, Array]:
        """Extend curves that ended early by the mean gain of the curves that have the missing legs.

        Trials are continued by values that were seen. So a leg's gain is estimated from all curves that have it: those
        that have all legs gained more than others would have (Rubin 1976, "Inference and missing data").
        """
        then, variance = self.values(step).copy(), np.zeros(len(self.rows))
        last = self.last_step[alike]
        after, gain, spread = float(step), 0.0, 0.0
        for stop in sorted({int(end) for end in last if end < step}, reverse=True):
            whole = alike[last >= after]
            if len(whole) < LEAST_MADE:
                break
            leg = self.values(after)[whole] - self.values(stop)[whole]
            after, gain, spread = float(stop), gain + float(leg.mean()), spread + float(leg.var())
            own = alike[last == stop]
            then[own], variance[own] = self.values(stop)[own] + gain, spread
        return alike[last >= after].tolist(), then, np.sqrt(variance)

    def values(self, step: float) -> Array:
        """The values of all ended curves at this step, in units."""
        if step not in self._values_at:
            self._values_at[step] = self._lines.values_at(step)
        return self._values_at[step]

    def _marks(self, now: float) -> Array:
        """The marks of all ended curves after this step."""
        return np.stack([self.values(now), self.values(now) - self.values(now / 2)], axis=1)


class _Lines:
    """Piecewise linear curves that are evaluated at a step all at once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        length = 1 + max((len(row.units) for row in rows), default=0)
        self._steps, self._units = np.full((len(rows), length), np.inf), np.empty((len(rows), length))
        for row, steps, units in zip(rows, self._steps, self._units, strict=True):
            steps[: len(row.units)], units[: len(row.units)] = row.curve.steps, row.units
            units[len(row.units) :] = row.units[-1]

    def values_at(self, step: float) -> Array:
        """The values at a step; constant before the first evaluation and after the last."""
        steps = np.maximum(step, self._steps[:, 0])
        after = (self._steps <= steps[:, None]).sum(axis=1)
        rows = np.arange(len(after))
        (begin, low), (end, high) = ((self._steps[rows, at], self._units[rows, at]) for at in (after - 1, after))
        return np.asarray(low + (high - low) / (end - begin) * (steps - begin))


def _examples(itself: Sequence[int], alike: Sequence[int]) -> Iterator[tuple[Integers, Integers]]:
    """Groups of rows by their index, with the indices of their examples: a curve is no example for itself.

    Rows that use all examples share one row of them.
    """
    own = np.array(itself)[:, None] == np.array(alike)
    left_out = own.any(axis=1)
    if not left_out.all():
        yield np.flatnonzero(~left_out), np.array([alike], dtype=np.int64)
    if left_out.any():
        others = np.broadcast_to(alike, own.shape)[~own & left_out[:, None]]
        yield np.flatnonzero(left_out), others.reshape(left_out.sum(), -1)


class _Peers:
    """The examples for rows that are at the same step and have the same later bends.

    Marks and values have a row for each of those, or one for all.
    """

    def __init__(self, marks: Array, then: Array, now: int, bend_ahead: bool, unsure: Array) -> None:
        self._marks, self._now, self._number = marks, now, then.shape[1]
        self._gains = then - marks[..., 0] if now >= 0 else then
        least = UNKNOWN / (1 + self._number) if bend_ahead or now < 0 else FINEST
        self._spreads = np.hypot(np.maximum(0.5 * nearness(self._gains, NEIGHBOURS), least), unsure)

    def kernels(self, numbers: Sequence[int], own: Array) -> _Answer:
        """The kernels of the rows with these indices, given their own marks."""
        size = (len(numbers), self._number)
        return _Answer(
            np.repeat(numbers, self._number),
            (own[:, :1] + self._gains).ravel(),
            np.broadcast_to(self._spreads, size).ravel(),
            np.full(size, 1 / max(self._number, 1)).ravel(),
            self._alike(own).ravel(),
        )

    def _alike(self, own: Array) -> Array:
        """The weight of each example for each row."""
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


def _marks(row: Row) -> tuple[float, float]:
    """The features of similarity: the value, and the gain in the second half of the evaluated steps."""
    value = float(row.units[-1]) if row.curve.steps else 0.0
    return value, value - row.value(row.curve.last_step / 2)


def nearness(values: Array, neighbours: int) -> Array:
    """The distance from each value to its k-th nearest other one, or to the farthest if there are fewer.

    The others are those along the last axis.
    """
    number = values.shape[-1]
    neighbours = max(min(neighbours, number - 1), 0)
    order = np.argsort(values, axis=-1, kind="stable")
    edge = np.full((*values.shape[:-1], neighbours), np.inf)
    padded = np.concatenate([-edge, np.take_along_axis(values, order, axis=-1), edge], axis=-1)
    middle = padded[..., neighbours : neighbours + number]
    reach = np.full(values.shape, np.inf)
    for below in range(neighbours + 1):
        low = padded[..., neighbours - below :][..., :number]
        high = padded[..., 2 * neighbours - below :][..., :number]
        reach = np.minimum(reach, np.maximum(middle - low, high - middle))
    result = np.empty_like(reach)
    np.put_along_axis(result, order, reach, axis=-1)
    return result


def _kernels(answers: Sequence[_Answer], rows: int) -> Kernels:
    row, mean, spread, equal, alike = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    plain = Mixtures(row, equal, mean, spread, rows)
    return Kernels(np.bincount(row, minlength=rows), plain, replace(plain, weight=alike))
