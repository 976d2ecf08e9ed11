"""A metric of any kind, turned and scaled: more is better, and what a study spans is about one unit.

Origin and unit are learnt from curves: they say which differences matter, and limit nothing. Bounds only clip. The
min-max scaling of the HyperDrive paper (Rasley et al. 2017, eq. 4), r_norm = (r - r_min) / (r_max - r_min), takes the
bounds for the unit. It is here for studies that were begun with it: an accuracy that moves between 0.5 and 0.6 would be
expected to gain a large part of what lies between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mode = Literal["min", "max"]
Bounds = tuple[float | None, float | None]
"""The least and the greatest value that the metric can have; None where there is none, or nobody knows."""

CRASH = -3.0
"""Below this, in units, only the order of magnitude counts."""
FARTHEST = 1e100
"""A value of a greater size counts as this one, so that what is computed with it stays finite."""
_SAME = 1e-30
MORE = 3.0
"""How many times the range of a curve so far a unit is, where nothing else is known."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A monotone map from the metric to units, and back. A crash is drawn nearer, by the logarithm.

    Rewards that crash and losses that explode would otherwise be all that a unit sees.
    """

    sign: float
    bounds: tuple[float, float]
    origin: float | Array
    unit: float | Array

    def to_units(self, values: Array) -> Array:
        """Values of the metric in units; those beyond the bounds count as at the bound."""
        units = (self.sign * np.clip(values, *self.bounds) - self.origin) / self.unit
        return np.where(units < CRASH, CRASH - np.log1p(np.maximum(CRASH - units, 0)), units)

    def to_metric(self, units: Array) -> Array:
        """Back again, and never beyond the bounds."""
        depth = np.clip(CRASH - units, 0, 100)
        units = np.where(units < CRASH, CRASH - np.expm1(depth), units)
        return np.clip(self.sign * (self.origin + self.unit * units), *self.bounds)

    def log_slope(self, values: Array) -> Array:
        """The logarithm of how many units a metric's small change at these values is."""
        units = (self.sign * values - self.origin) / self.unit
        return -np.log(self.unit) - np.log1p(np.maximum(CRASH - units, 0))


def by_row(scales: Sequence[Scale]) -> Scale:
    """Scales that differ in origin and unit only, as one for values that have a row of each."""
    return replace(scales[0], origin=np.array([s.origin for s in scales]), unit=np.array([s.unit for s in scales]))


def study_scale(mode: Mode, bounds: Bounds, values: Sequence[float], *, bounds_are_unit: bool = False) -> Scale:
    """The scale learnt from all values of the study's curves; if they are all the same, that of `curve_scale`.

    The best value is one unit; zero is worse than nine values of ten, but not where a tenth of them are crashes: no
    more than ten times as far from the best as the value in the middle is.
    """
    plain = curve_scale(mode, bounds, values, bounds_are_unit=bounds_are_unit)
    z = plain.sign * np.clip(np.array(values, dtype=float), *plain.bounds)
    best, middle, bad = z.max(), np.median(z), np.quantile(z, 0.1)
    worst = max(bad, best - 10 * (best - middle)) if best - middle > _SAME else bad
    worst = worst if best - worst > _SAME else z.min()
    if best - worst <= _SAME:
        return plain
    return replace(plain, origin=float(worst), unit=float(best - worst))


def curve_scale(mode: Mode, bounds: Bounds, values: Sequence[float], *, bounds_are_unit: bool = False) -> Scale:
    """The scale of a curve while nothing was learnt from others: a few times its own range so far is a unit.

    bounds_are_unit: where both are known, what lies between them is the unit instead.
    """
    sign = 1.0 if mode == "max" else -1.0
    least, greatest = _limits(bounds)
    if bounds_are_unit and None not in bounds and least < greatest:
        return Scale(sign, (least, greatest), min(sign * least, sign * greatest), greatest - least)
    z = sign * np.clip(np.array([*values] or [0.0]), least, greatest)
    unit = MORE * float(z.max() - z.min())
    if unit <= _SAME:
        unit = abs(float(z[0])) if abs(z[0]) > _SAME else 1.0  # nothing says what is much, but the value itself
    return Scale(sign, (least, greatest), float((z.max() + z.min() - unit) / 2), unit)


def _limits(bounds: Bounds) -> list[float]:
    """The least and the greatest value that are told apart from those beyond."""
    least = -FARTHEST if bounds[0] is None else bounds[0]
    greatest = FARTHEST if bounds[1] is None else bounds[1]
    return [max(-FARTHEST, min(bound, FARTHEST)) for bound in (least, greatest)]
