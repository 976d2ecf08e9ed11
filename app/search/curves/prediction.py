"""What some curves come to: each alone, by the drift, by the drift of similar ones, and by surprise, in one mixture.

The distribution of the metric at later steps, for several trials at once, in the metric's own units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from app.search.curves.curve import Curve, Scale
from app.search.curves.drift import UNKNOWN, Drift, Kernels, Row
from app.search.curves.learning import View
from app.search.curves.mixtures import Integers, Mixtures, stack
from app.search.curves.quadrature import Fit, Fits, uniform

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ENOUGH = 4
"""The drift has a share once so many ended curves foretell a curve."""
ALONE = np.array([0.98, 0.0, 0.0, 0.02])
"""The shares of the curve alone, the drift, the drift of similar curves, and a surprise, before anything is learnt."""
WIDTHS = (0.8, 1.0, 1.25, 1.6)
"""What the spread of the curve alone may be multiplied with. Before anything is learnt, it is the first of them."""
SURPRISES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])
"""Around the last value, normal distributions of so many units, equally likely: what nothing foretells."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a study's ended curves taught; by default, nothing.

    trust: the share of the last value's plain verdict about a target, see `learning.learn_trust`.
    """

    scale: Scale | None = None
    drift: Drift = field(default_factory=Drift)
    middle: float = 0.5
    log_prior: Array = field(default_factory=uniform)
    shares: Array = field(default_factory=ALONE.copy)
    width: float = WIDTHS[0]
    trust: Array = field(default_factory=lambda: np.zeros((2, 2)))


class Batch:
    """Curves that are predicted together. All answers are in units, with a row for each curve."""

    def __init__(
        self, learnt: Learnt, horizon: int, rows: Sequence[Row], views: Sequence[View], fits: Sequence[Fit]
    ) -> None:
        self.rows, self._learnt, self._horizon = rows, learnt, horizon
        self.last_step = np.array([row.curve.last_step for row in rows])
        self.last = np.array([row.units[-1] if row.curve.steps else learnt.middle for row in rows])
        self._begun = self.last_step >= 0
        self._fits = Fits(fits)
        self._begin, self._length = (np.array(part) for part in zip(*(view[2:4] for view in views), strict=True))
        self._factor = np.array([view.factor for view in views])
        self._mixtures: dict[int, Mixtures] = {}
        self._alone: dict[int, Mixtures] = {}
        self._kernels: dict[int, Kernels] = {}
        self._bent: dict[int, Flags] = {}

    def with_learnt(self, learnt: Learnt) -> Batch:
        """The same curves and posteriors, where more has been learnt of the rest."""
        other = copy(self)
        other._learnt, other._mixtures = learnt, {}
        return other

    def at(self, step: int) -> Mixtures:
        """What the curves come to at a step."""
        if step not in self._mixtures:
            self._mixtures[step] = self._stacked(step)
        return self._mixtures[step]

    def reaches(self, step: int, target: Array) -> Array:
        """The probability of at least a target at a step: of the distribution, and the last value's plain verdict."""
        verdicts = (self.last >= target).astype(int)
        share = self._trust(step, verdicts)
        return np.asarray((1 - share) * (1 - self.at(step).below(target)) + share * verdicts)

    def bend_before(self, step: int) -> Flags:
        """Whether a bend lies between now and then."""
        if step not in self._bent:
            ahead = [row.curve.bends_within(row.curve.last_step, step) for row in self.rows]
            self._bent[step] = np.array([bool(bends) for bends in ahead])
        return self._bent[step]

    def alone(self, step: int) -> Mixtures:
        """What each curve says itself. What a bend on the way will do it does not know."""
        if step not in self._alone:
            own = self._fits.at(np.maximum(step - self._begin, 0) / self._length)
            factor, unknown = self._factor[own.row], np.where(self.bend_before(step), UNKNOWN, 0.0)[own.row]
            mean, spread = self._learnt.middle + factor * own.mean, np.hypot(factor * own.spread, unknown)
            self._alone[step] = replace(own, mean=mean, spread=spread)
        return self._alone[step]

    def others(self, step: int) -> Kernels:
        """What the ended curves foretell."""
        if step not in self._kernels:
            self._kernels[step] = self._learnt.drift.at(self.rows, step)
        return self._kernels[step]

    def surprise(self) -> Mixtures:
        """What nothing foretells."""
        rows, each = len(self.rows), len(SURPRISES)
        where = np.repeat(np.arange(rows), each)
        return Mixtures(where, np.full(rows * each, 1 / each), self.last[where], np.tile(SURPRISES, rows), rows)

    def _stacked(self, step: int) -> Mixtures:
        """All predictions of a step, each with its share."""
        kernels = self.others(step)
        alone, plain, similar, surprise = self._divide(kernels.peers, step)
        others = (np.ones(len(self.rows)), kernels.pooled(plain, similar))
        return stack([(alone, self.alone(step).spread_by(self._learnt.width)), others, (surprise, self.surprise())])

    def _trust(self, step: int, verdicts: Integers) -> Array:
        """The share of these verdicts: none where a bend may change all."""
        begin, growth = self._learnt.trust[verdicts].T
        share = np.clip(begin + growth * self.last_step / self._horizon, 0, 1)
        return np.where(self._begun & ~self.bend_before(step), share, 0.0)

    def _divide(self, peers: Integers, step: int) -> Array:
        """The shares of the four predictions, a column for each curve.

        One that has not begun, or comes to a bend, says nothing itself: there its peers count by how many they are.
        """
        enough = peers >= ENOUGH
        alone, plain, similar, surprise = np.where(enough, self._learnt.shares[:, None], ALONE[:, None])
        alone = np.where(self.bend_before(step) | ~self._begun, (1 - surprise) / (1 + peers), alone)
        rest = 1 - surprise - alone
        part = np.where(enough & self._begun, plain / np.where(enough, plain + similar, 1.0), 1.0)
        return np.stack([alone, rest * part, rest * (1 - part), surprise])


@dataclass(frozen=True, slots=True)
class FirstStep:
    """When a target will be reached, for each trial.

    probability: that it is, at one of the steps asked about (p of the HyperDrive paper). expected: the mean of the
    step, absolute, where a trial that does not reach it counts with the last step asked about.
    """

    probability: Array
    expected: Array


class Posterior:
    """Answers have a row for each trial and a column for each step. Steps are absolute, values those of the metric.

    steps: a sequence of them, in any order. At a step that a trial has already come to, its value is what was measured
    there, or between the evaluations next to it on a straight line; `below` and `log_density` are for later steps only.
    """

    def __init__(self, curves: Sequence[Curve], scale: Scale, batch: Batch) -> None:
        self.curves, self._scale, self._batch = curves, scale, batch
        self._last = np.array([curve.last_step for curve in curves])

    def mean(self, steps: Sequence[int]) -> Array:
        """The mean. Of a crash, in which only the order of magnitude counts, it is the mean of that."""
        return self._columns(steps, lambda step: self._scale.to_metric(self._batch.at(step).expectation()))

    def spread(self, steps: Sequence[int]) -> Array:
        """Half the width of what holds 68 % of the probability: of a normal distribution, the standard deviation.

        (The prediction accuracy PA of the HyperDrive paper. Its standard deviation would be that of the surprises.)
        """
        return (self.quantile(steps, 0.84) - self.quantile(steps, 0.16)) / 2

    def quantile(self, steps: Sequence[int], q: float) -> Array:
        """The value that the metric exceeds with probability 1 - q, for 0 < q < 1."""
        if not 0 < q < 1:
            raise ValueError(f"a quantile is asked for with a number between 0 and 1, not {q}")
        part = q if self._scale.sign > 0 else 1 - q
        return self._columns(steps, lambda step: self._scale.to_metric(self._batch.at(step).quantile(part)))

    def prob_reaches(self, steps: Sequence[int], target: float) -> Array:
        """P(y_m >= target) where more is better, else P(y_m <= target), at each step m (HyperDrive, eq. 1).

        Whether the last value reaches it has a share in this beside the distribution, as large as ended trials say.
        """
        sign, bounds = self._scale.sign, self._scale.bounds
        best, worst = bounds[::-1] if sign > 0 else bounds
        if sign * target > sign * best or sign * target <= sign * worst:
            certain = float(sign * target <= sign * worst)
            return np.full((len(self.curves), len(steps)), certain)
        level = self._units(target)
        return self._columns(
            steps,
            lambda step: self._batch.reaches(step, level),
            lambda values: np.asarray(sign * (values - target) >= 0, dtype=float),
        )

    def below(self, steps: Sequence[int], values: Array) -> Array:
        """P(y_m <= value), of a value for each trial and step: what calibration is measured with."""
        columns = []
        for step, value in zip(steps, np.asarray(values, dtype=float).T, strict=True):
            below = self._batch.at(step).below(self._units(value))
            columns.append(below if self._scale.sign > 0 else 1 - below)
        return np.stack(columns, axis=1)

    def log_density(self, steps: Sequence[int], values: Array) -> Array:
        """The logarithm of the density at a value for each trial and step, for steps that are still to come."""
        pairs = zip(steps, np.asarray(values, dtype=float).T, strict=True)
        return np.stack(
            [self._batch.at(s).log_density(self._units(v)) + self._scale.log_slope(v) for s, v in pairs], axis=1
        )

    def expected_first_step(self, target: float, steps: Sequence[int]) -> FirstStep:
        """The first of these ascending steps at which the target is reached (HyperDrive, §3.1.1, eq. 2).

        The steps are those at which a trial will be evaluated, the last one its horizon. The paper adds up differences
        of P(y_m >= target); so does this, but where P falls again they count as 0 and not as less. That P is of one
        step at a time, hence what is computed is at most the probability of reaching the target at any of them. A
        target that was reached in the past has probability 1 and the step where it was.
        """
        if not steps or any(a >= b for a, b in pairwise(steps)):
            raise ValueError("the steps at which a target may be reached are ascending, and there is at least one")
        future = np.asarray(steps)[None] > self._last[:, None]
        reached = np.maximum.accumulate(np.where(future, self.prob_reaches(steps, target), 0.0), axis=1)
        new = np.diff(reached, axis=1, prepend=0.0)
        probability = reached[:, -1].copy()
        expected = new @ np.asarray(steps, dtype=float) + (1 - probability) * steps[-1]
        for number, curve in enumerate(self.curves):
            past = [s for s, v in zip(curve.steps, curve.values, strict=True) if self._scale.sign * (v - target) >= 0]
            if past:
                probability[number], expected[number] = 1.0, past[0]
        return FirstStep(probability, expected)

    def _units(self, values: Array | float) -> Array:
        return self._scale.to_units(np.broadcast_to(np.asarray(values, dtype=float), (len(self.curves),)))

    def _columns(
        self, steps: Sequence[int], later: Callable[[int], Array], past: Callable[[Array], Array] = np.asarray
    ) -> Array:
        """A column for each step: what is said of one that is to come, and of the values at one that has been."""
        return np.stack([self._column(later(step), past, step) for step in steps], axis=1)

    def _column(self, later: Array, past: Callable[[Array], Array], step: int) -> Array:
        is_past = step <= self._last
        return np.where(is_past, past(self._measured(step)), later) if is_past.any() else later

    def _measured(self, step: int) -> Array:
        return np.array([np.interp(step, curve.steps, curve.values) if curve.steps else 0.0 for curve in self.curves])
