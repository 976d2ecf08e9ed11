"""Predictions of curves: a mixture of the curve alone, the drift, the drift of similar curves, and a surprise.

`Posterior` has the distribution of the metric at later steps, for several trials at once, in the metric's own units.
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
from app.search.curves.mixtures import Array, Integers, Mixtures, stack
from app.search.curves.quadrature import Fit, Fits, uniform

Flags = npt.NDArray[np.bool_]

ENOUGH = 4
"""The drift has a share if this many ended curves predict a curve."""
ALONE = np.array([0.98, 0.0, 0.0, 0.02])
"""The shares of the curve alone, the drift, the drift of similar curves, and a surprise, before anything is learned."""
WIDTHS = (0.8, 1.0, 1.25, 1.6)
"""Candidate factors of the spread of the curve alone. Before anything is learned, the first."""
SURPRISES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])
"""A surprise is an equal mixture of normal distributions around the last value, with these standard deviations in
units."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a study's ended curves taught; by default, nothing.

    trust: the share of the last value's verdict about a target, see `learning.learn_trust`.
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

    def with_lesson(self, learnt: Learnt) -> Batch:
        """The same curves and posteriors, with other lessons."""
        other = copy(self)
        other._learnt, other._mixtures = learnt, {}
        return other

    def predict(self, step: int) -> Mixtures:
        """The mixture at a step."""
        if step not in self._mixtures:
            self._mixtures[step] = self._stack(step)
        return self._mixtures[step]

    def reaches(self, step: int, target: Array) -> Array:
        """The probability of at least a target at a step, from the distribution and the last value's verdict."""
        verdicts = (self.last >= target).astype(int)
        share = self._trust(step, verdicts)
        return np.asarray((1 - share) * (1 - self.predict(step).below(target)) + share * verdicts)

    def bend_before(self, step: int) -> Flags:
        """Whether a bend lies ahead before the step."""
        if step not in self._bent:
            ahead = [row.curve.bends_within(row.curve.last_step, step) for row in self.rows]
            self._bent[step] = np.array([bool(bends) for bends in ahead])
        return self._bent[step]

    def alone(self, step: int) -> Mixtures:
        """The prediction of each curve by itself, which does not know the effect of a bend ahead."""
        if step not in self._alone:
            own = self._fits.predict(np.maximum(step - self._begin, 0) / self._length)
            factor, unknown = self._factor[own.row], np.where(self.bend_before(step), UNKNOWN, 0.0)[own.row]
            mean, spread = self._learnt.middle + factor * own.mean, np.hypot(factor * own.spread, unknown)
            self._alone[step] = replace(own, mean=mean, spread=spread)
        return self._alone[step]

    def others(self, step: int) -> Kernels:
        """The predictions from ended curves."""
        if step not in self._kernels:
            self._kernels[step] = self._learnt.drift.predict(self.rows, step)
        return self._kernels[step]

    def surprise(self) -> Mixtures:
        """The mixture of surprises."""
        rows, each = len(self.rows), len(SURPRISES)
        where = np.repeat(np.arange(rows), each)
        return Mixtures(where, np.full(rows * each, 1 / each), self.last[where], np.tile(SURPRISES, rows), rows)

    def _stack(self, step: int) -> Mixtures:
        """All predictions of a step, each with its share."""
        kernels = self.others(step)
        alone, plain, similar, surprise = self._divide(kernels.peers, step)
        others = (np.ones(len(self.rows)), kernels.pool(plain, similar))
        return stack([(alone, self.alone(step).spread_by(self._learnt.width)), others, (surprise, self.surprise())])

    def _trust(self, step: int, verdicts: Integers) -> Array:
        """The share of these verdicts; zero if a bend lies ahead."""
        begin, growth = self._learnt.trust[verdicts].T
        share = np.clip(begin + growth * self.last_step / self._horizon, 0, 1)
        return np.where(self._begun & ~self.bend_before(step), share, 0.0)

    def _divide(self, peers: Integers, step: int) -> Array:
        """The shares of the four predictions, a column for each curve.

        A curve that has not begun, or has a bend ahead, predicts nothing itself: its peers count by their number.
        """
        enough = peers >= ENOUGH
        alone, plain, similar, surprise = np.where(enough, self._learnt.shares[:, None], ALONE[:, None])
        alone = np.where(self.bend_before(step) | ~self._begun, (1 - surprise) / (1 + peers), alone)
        rest = 1 - surprise - alone
        part = np.where(enough & self._begun, plain / np.where(enough, plain + similar, 1.0), 1.0)
        return np.stack([alone, rest * part, rest * (1 - part), surprise])


@dataclass(frozen=True, slots=True)
class FirstStep:
    """When each trial reaches a target.

    probability: that it does, at one of the given steps (p of the HyperDrive paper). expected: the mean step, where a
    trial that does not reach the target counts with the last of the steps.
    """

    probability: Array
    expected: Array


class Posterior:
    """Predictions with a row for each trial and a column for each step. Steps are absolute, and values are in the
    metric's scale.

    At a step that a trial has passed, the prediction is its measured value, interpolated linearly; `below` and
    `log_density` are for later steps only.
    """

    def __init__(self, curves: Sequence[Curve], scale: Scale, batch: Batch) -> None:
        self.curves, self._scale, self._batch = curves, scale, batch
        self._last = np.array([curve.last_step for curve in curves])

    def mean(self, steps: Sequence[int]) -> Array:
        """The mean. In the range of crashes, where only the order of magnitude counts, the mean of that."""
        return self._columns(steps, lambda step: self._scale.to_metric(self._batch.predict(step).expectation()))

    def spread(self, steps: Sequence[int]) -> Array:
        """Half the width of the central 68 %: for a normal distribution, the standard deviation.

        (The prediction accuracy PA of the HyperDrive paper. The standard deviation itself would be that of the
        surprises.)
        """
        return (self.quantile(steps, 0.84) - self.quantile(steps, 0.16)) / 2

    def quantile(self, steps: Sequence[int], q: float) -> Array:
        """The value that the metric exceeds with probability 1 - q, for 0 < q < 1."""
        if not 0 < q < 1:
            raise ValueError(f"a quantile must be a number between 0 and 1, not {q}")
        part = q if self._scale.sign > 0 else 1 - q
        return self._columns(steps, lambda step: self._scale.to_metric(self._batch.predict(step).quantile(part)))

    def prob_reaches(self, steps: Sequence[int], target: float) -> Array:
        """P(y_m >= target) if more is better, else P(y_m <= target), at each step m (HyperDrive, eq. 1).

        The verdict of the last value has a share in it, which is learned from ended trials.
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
        """P(y_m <= value), for a value for each trial and step: used to measure calibration."""
        columns = []
        for step, value in zip(steps, np.asarray(values, dtype=float).T, strict=True):
            below = self._batch.predict(step).below(self._units(value))
            columns.append(below if self._scale.sign > 0 else 1 - below)
        return np.stack(columns, axis=1)

    def log_density(self, steps: Sequence[int], values: Array) -> Array:
        """The logarithm of the density at a value for each trial and step, for later steps only."""
        pairs = zip(steps, np.asarray(values, dtype=float).T, strict=True)
        return np.stack(
            [self._batch.predict(s).log_density(self._units(v)) + self._scale.log_slope(v) for s, v in pairs], axis=1
        )

    def expected_first_step(self, target: float, steps: Sequence[int]) -> FirstStep:
        """The first of these ascending steps at which the target is reached (HyperDrive, §3.1.1, eq. 2).

        The steps are those at which a trial will be evaluated, the last one its horizon. Like the paper, this adds up
        differences of P(y_m >= target), but a decrease of P counts as 0. P is the probability at a single step, so the
        result is a lower bound of the probability of reaching the target at any of them. A target that was reached in
        the past has probability 1 and that step.
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
        """A column for each step: `later` of a future step, or `past` of the measured values."""
        return np.stack([self._column(later(step), past, step) for step in steps], axis=1)

    def _column(self, later: Array, past: Callable[[Array], Array], step: int) -> Array:
        is_past = step <= self._last
        return np.where(is_past, past(self._measured_values(step)), later) if is_past.any() else later

    def _measured_values(self, step: int) -> Array:
        return np.array([np.interp(step, curve.steps, curve.values) if curve.steps else 0.0 for curve in self.curves])
