"""The distribution of the metric at later steps, for several trials at once, in the metric's own units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from app.tuning.curves.curve import Curve
from app.tuning.curves.prediction import Batch
from app.tuning.curves.scale import Scale

Array = npt.NDArray[np.float64]


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
