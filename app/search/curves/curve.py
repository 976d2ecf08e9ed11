"""A learning curve, the scale of its metric, and the shapes that it may have.

In units, more is better, and the values of a study span about one. Origin and unit are learned from curves: they say
which differences matter, and limit nothing. Bounds only clip. (The min-max scaling of the HyperDrive paper, Rasley et
al. 2017, eq. 4, r_norm = (r - r_min) / (r_max - r_min), takes the unit from the bounds. An accuracy that moves between
0.5 and 0.6 would be expected to gain a large part of the range from 0 to 1.)

The shapes are the eleven families of Domhan et al. (IJCAI 2015, table 1) as six, because five repeat others. Where c is
the limit, and a, b, ... are numbers of each trial:

| here | theirs | formula |
|---|---|---|
| power | pow3 (b = 0, with a), pow4 | c - (a x + b) ** -alpha |
| inverse_log | ilog2 | c - a / ln(x + 1) |
| log_log | loglog_linear | ln(a ln x + b) |
| vapor | vapor pressure | exp(a + b / x + c ln x) |
| exponential | weibull, janoschek, exp4 (up to its b) | alpha - (alpha - beta) exp(-(k x) ** delta) |
| hill | mmf, hill3 (beta = 0), logistic "log power" (beta = 0) | alpha - (alpha - beta) / (1 + (k x) ** delta) |

Given its shape parameters, each family is level + gain * shape(x), linear in the numbers that differ between trials. So
a shape here is a function without parameters, scaled to begin at 0 and to reach at most 1 from there by the horizon.
Then "gain" means the same for all shapes, and one prior serves them all. ln(a ln x + b) is ln a + ln(ln x + b / a) with
a gain of 1, and exp(a + ...) is exp(a) times the rest with a level of 0; here both have a free level and gain.

The clock runs from 0 to 1, at the horizon. x of the papers counts epochs from 1; here it is 1 + clock / unit, so that a
shape does not depend on the length of a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import isfinite
from operator import ge
from typing import Literal

import numpy as np

from app.search.curves.mixtures import Array

Bend = tuple[int, str]
"""A step at which a sequence changes abruptly, and how. The text is only compared."""


Piece = tuple[int, int, int]
"""A part of a curve: its first step, the index of its first evaluation, and the index after its last."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of the metric at the evaluated steps of a trial, at any distances. There may be none yet.

    steps: 0 or more, ascending. bends: ascending, including future ones. Two curves are expected to bend alike if they
    have equal bends, such as `(100, "lr x 0.1")`.

    Raises ValueError, with a sentence, for anything else. A trial with a value that is not a number has failed, and has
    no curve.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    bends: tuple[Bend, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values):
            raise ValueError(f"a curve has a value for each step: {len(self.steps)} steps, {len(self.values)} values")
        if min(self.steps, default=0) < 0 or any(map(ge, self.steps, self.steps[1:])):
            raise ValueError("the steps of a curve are 0 or more, and each is greater than the one before")
        if not all(map(isfinite, self.values)):
            step, value = next(one for one in zip(self.steps, self.values, strict=True) if not isfinite(one[1]))
            raise ValueError(f"the values of a curve are finite numbers: at step {step} it is {value}")
        if any(a[0] > b[0] for a, b in pairwise(self.bends)):
            raise ValueError("the bends of a curve are in the order of their steps")

    @property
    def last_step(self) -> int:
        """The last evaluated step; -1 if there is none."""
        return self.steps[-1] if self.steps else -1

    def bends_within(self, begin: float, end: float) -> tuple[Bend, ...]:
        """The bends between two steps."""
        return tuple(bend for bend in self.bends if begin <= bend[0] < end)

    def pieces(self) -> list[Piece]:
        """Its parts between the bends that it has passed, at least one. The last one is the current one.

        A part begins with the last value before its bend.
        """
        bends = sorted({step for step, _ in self.bends if 0 < step < self.last_step})
        ends = [bisect_right(self.steps, bend) for bend in bends]
        firsts = [max(end - 1, 0) for end in ends]
        return list(zip([0, *bends], [0, *firsts], [*ends, len(self.steps)], strict=True))


def values_of(curves: Iterable[Curve]) -> list[float]:
    return [value for curve in curves for value in curve.values]


Mode = Literal["min", "max"]
Bounds = tuple[float | None, float | None]
"""The least and the greatest possible value of the metric; None if there is none or it is unknown."""

CRASH = -3.0
"""Below this, in units, only the order of magnitude counts."""
FARTHEST = 1e100
"""Values are clipped at this size, so that results stay finite."""
_SAME = 1e-30
MORE = 3.0
"""The unit as a multiple of the curve's range, before anything is learned from other curves."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A monotone map from the metric to units, and back. Crashes are compressed logarithmically.

    Otherwise crashing rewards and exploding losses would determine the unit.
    """

    sign: float
    bounds: tuple[float, float]
    origin: float | Array
    unit: float | Array

    def to_units(self, values: Array) -> Array:
        """Values in units, clipped at the bounds."""
        units = (self.sign * np.clip(values, *self.bounds) - self.origin) / self.unit
        return np.where(units < CRASH, CRASH - np.log1p(np.maximum(CRASH - units, 0)), units)

    def to_metric(self, units: Array) -> Array:
        """The inverse, clipped at the bounds."""
        depth = np.clip(CRASH - units, 0, 100)
        units = np.where(units < CRASH, CRASH - np.expm1(depth), units)
        return np.clip(self.sign * (self.origin + self.unit * units), *self.bounds)

    def log_slope(self, values: Array) -> Array:
        """The logarithm of the derivative of units by the metric at these values."""
        units = (self.sign * values - self.origin) / self.unit
        return -np.log(self.unit) - np.log1p(np.maximum(CRASH - units, 0))


def stack_scales(scales: Sequence[Scale]) -> Scale:
    """Scales that differ in origin and unit only, as one for values with a row for each."""
    return replace(scales[0], origin=np.array([s.origin for s in scales]), unit=np.array([s.unit for s in scales]))


def study_scale(mode: Mode, bounds: Bounds, values: Sequence[float]) -> Scale:
    """The scale learned from all values of the study's curves; that of `curve_scale` if they are all equal.

    The best value is one unit. Zero is the tenth percentile; but if a tenth are crashes, at most ten times as far from
    the best as the median.
    """
    plain = curve_scale(mode, bounds, values)
    z = plain.sign * np.clip(np.array(values, dtype=float), *plain.bounds)
    best, middle, bad = z.max(), np.median(z), np.quantile(z, 0.1)
    worst = max(bad, best - 10 * (best - middle)) if best - middle > _SAME else bad
    worst = worst if best - worst > _SAME else z.min()
    if best - worst <= _SAME:
        return plain
    return replace(plain, origin=float(worst), unit=float(best - worst))


def curve_scale(mode: Mode, bounds: Bounds, values: Sequence[float]) -> Scale:
    """The scale of a single curve, before anything is learned from others: a unit is a few times its range."""
    sign = 1.0 if mode == "max" else -1.0
    least, greatest = _limits(bounds)
    z = sign * np.clip(np.array([*values] or [0.0]), least, greatest)
    unit = MORE * float(z.max() - z.min())
    if unit <= _SAME:
        unit = abs(float(z[0])) if abs(z[0]) > _SAME else 1.0  # only the value itself suggests a unit
    return Scale(sign, (least, greatest), float((z.max() + z.min() - unit) / 2), unit)


def _limits(bounds: Bounds) -> list[float]:
    """The bounds as finite numbers."""
    least = -FARTHEST if bounds[0] is None else bounds[0]
    greatest = FARTHEST if bounds[1] is None else bounds[1]
    return [max(-FARTHEST, min(bound, FARTHEST)) for bound in (least, greatest)]


Formula = Callable[[Array, Sequence[Array]], Array]

UNTIL_HALF = (0.03, 0.08, 0.2, 0.4, 0.6, 0.85)
"""Where exponential and hill are halfway, as a part of the horizon."""


def _power(clock: Array, at: Sequence[Array]) -> Array:
    unit, alpha = at
    return -np.power(1 + clock / unit, -alpha)


def _inverse_log(clock: Array, at: Sequence[Array]) -> Array:
    (unit,) = at
    return -1 / np.log(2 + clock / unit)


def _log_log(clock: Array, at: Sequence[Array]) -> Array:
    unit, offset = at
    return np.log(np.log1p(clock / unit) + offset)


def _vapor(clock: Array, at: Sequence[Array]) -> Array:
    unit, b, c = at
    x = 1 + clock / unit
    return np.exp(b / x + c * np.log(x))


def _exponential(clock: Array, at: Sequence[Array]) -> Array:
    half, delta = at
    return np.asarray(-np.exp(-np.log(2) * (clock / half) ** delta))


def _hill(clock: Array, at: Sequence[Array]) -> Array:
    half, delta = at
    return -1 / (1 + (clock / half) ** delta)


FAMILIES: dict[str, tuple[Formula, tuple[tuple[float, ...], ...]]] = {
    "power": (_power, tuple(product((0.01, 0.05, 0.2, 1.0), (0.3, 1.0, 3.0)))),
    "inverse_log": (_inverse_log, ((0.003,), (0.02,), (0.1,), (0.5,))),
    "log_log": (_log_log, tuple(product((0.01, 0.1), (0.3, 2.0)))),
    "vapor": (_vapor, tuple((unit, *at) for unit in (0.02, 0.1) for at in ((-3, 0), (-3, -0.3), (-1, 0.1), (-10, 0)))),
    "exponential": (_exponential, tuple(product(UNTIL_HALF, (0.6, 1.0, 2.0, 5.0)))),
    "hill": (_hill, tuple(product(UNTIL_HALF, (1.0, 2.0, 5.0, 12.0)))),
}
"""The formula of each family, and its shape parameters: the nodes of a quadrature."""

_PARAMETERS = [(formula, list(np.array(nodes, dtype=float).T[:, :, None])) for formula, nodes in FAMILIES.values()]
NUM_SHAPES = sum(len(nodes) for _, nodes in FAMILIES.values())


def _raw(clock: Array) -> Array:
    return np.concatenate([formula(clock, at) for formula, at in _PARAMETERS])


_BEGIN = _raw(np.zeros(1))
_REACH = np.abs(_raw(np.linspace(0, 1, 101)) - _BEGIN).max(axis=1, keepdims=True)


def shapes(clock: Array) -> Array:
    """Every shape (a row each) at some times of the clock, from 0 on, also beyond the horizon."""
    return np.asarray((_raw(clock) - _BEGIN) / _REACH)
