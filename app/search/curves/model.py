"""Predicts the curves of a study: a prior learned from its ended trials, stacked with the study's drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from app.search.curves.curve import Bounds, Curve, Mode, Piece, Scale, curve_scale, stack_scales, study_scale, values_of
from app.search.curves.drift import Drift, Row
from app.search.curves.learning import Prior, View, learn_pool, learn_prior, learn_trust, posteriors
from app.search.curves.mixtures import Array
from app.search.curves.prediction import ENOUGH, WIDTHS, Batch, Learnt, Posterior
from app.search.curves.quadrature import Fit

Flags = npt.NDArray[np.bool_]

MOST_FITTED = 100
"""How many curves are learned from, evenly chosen."""
MOST_WHOLE = 70
"""How many of them reached the horizon, if others did not."""
MOST_LOOKED_BACK = 20
"""How many of them are predicted from a cut, to learn how far to trust each prediction."""
CUTS = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Where ended curves are cut, as parts of the horizon, to see which prediction of the rest is best."""
RANGE = 2.0
"""A curve that leaves the median by more than this many units gets larger units of its own."""
TARGETS = (0.8, 0.9, 0.95)
"""The quantiles of final values that are used as targets to learn from."""
MOST_REMEMBERED = 4096

Item = TypeVar("Item")
_Look = tuple[Batch, int]
"""Truncated ended curves, and a later step."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A curve under way, with its posterior."""

    scale: Scale
    row: Row
    view: View
    fit: Fit


class CurveModel:
    """Predicts the curves of one study. Deterministic: a curve's prediction does not depend on other predicted curves.

    mode: "min" or "max", which is better. horizon: the step at which trials end. bounds: the least and the greatest
    possible value of the metric, or None; values are clipped there. Before anything is learned, the scale is the range
    of the curve.
    """

    def __init__(self, mode: Mode, horizon: int, bounds: Bounds = (None, None)) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f'the mode is "min" or "max", not {mode!r}')
        if horizon < 1:
            raise ValueError(f"the horizon is a step from 1 on, not {horizon}")
        least, greatest = bounds
        if least is not None and greatest is not None and not least < greatest:
            raise ValueError(f"the first bound is less than the second, unlike {least} and {greatest}")
        self.mode, self.horizon, self.bounds = mode, horizon, bounds
        self._learnt, self._begun = Learnt(), dict[Curve, _Begun]()

    def fit(self, ended: Iterable[Curve]) -> None:
        """Learn from these curves, which replace the curves of an earlier call."""
        curves = self._select([curve for curve in ended if curve.steps])
        self._learnt, self._begun = Learnt(), {}
        if curves:
            values, ends = values_of(curves), np.cumsum([len(curve.steps) for curve in curves])
            scale = study_scale(self.mode, self.bounds, values)
            units = np.split(scale.to_units(np.array(values)), ends[:-1])
            rows = [Row(curve, own, i) for i, (curve, own) in enumerate(zip(curves, units, strict=True))]
            drift = Drift(rows)
            middle = float(np.median([row.units[0] for row in drift.rows]))
            self._learnt = Learnt(scale, drift, middle)
            self._learn()

    def predict(self, curves: Sequence[Curve]) -> Posterior:
        """Predict these curves. Results are cached until the next `fit`."""
        if not curves:
            raise ValueError("there is no curve to predict")
        if new := [curve for curve in dict.fromkeys(curves) if curve not in self._begun]:
            self._begin(new)
        chosen = [self._begun[curve] for curve in curves]
        for oldest in list(self._begun)[: len(self._begun) - MOST_REMEMBERED]:
            del self._begun[oldest]
        rows, views, fits = [one.row for one in chosen], [one.view for one in chosen], [one.fit for one in chosen]
        batch = Batch(self._learnt, self.horizon, rows, views, fits)
        return Posterior(curves, stack_scales([one.scale for one in chosen]), batch)

    def _begin(self, curves: Sequence[Curve]) -> None:
        scales = [self._learnt.scale or curve_scale(self.mode, self.bounds, curve.values) for curve in curves]
        rows = [Row(curve, scale.to_units(np.array(curve.values))) for curve, scale in zip(curves, scales, strict=True)]
        views = [self._view(row) for row in rows]
        fits = posteriors(views, self._learnt.log_prior)
        for parts in zip(scales, rows, views, fits, strict=True):
            self._begun[parts[1].curve] = _Begun(*parts)

    def _select(self, curves: Sequence[Curve]) -> Sequence[Curve]:
        """The curves to learn from: mostly complete ones, because only they show the end."""
        whole = [curve for curve in curves if curve.last_step >= self.horizon]
        if len(curves) <= MOST_FITTED or len(whole) == len(curves):
            return _evenly(curves, MOST_FITTED)
        far = _evenly(whole, MOST_WHOLE)
        rest = [curve for curve in curves if curve.last_step < self.horizon]
        return [*far, *_evenly(rest, MOST_FITTED - len(far))]

    def _view(self, row: Row, piece: Piece | None = None) -> View:
        """A piece of a curve, by default the last, as the quadrature takes it."""
        begin, first, end = piece or row.curve.pieces()[-1]
        length = max(self.horizon - begin, 1)
        values = row.units[first:end] - self._learnt.middle
        factor = max(1.0, float(np.abs(values).max(initial=0.0)) / RANGE)
        clock = tuple((max(step, begin) - begin) / length for step in row.curve.steps[first:end])
        return View(clock, values / factor, begin, length, factor)

    def _learn(self) -> None:
        rows = self._learnt.drift.rows
        pieces = [(row, piece) for row in rows for piece in row.curve.pieces()]
        prior = learn_prior([self._view(*one) for one in pieces], [row.itself for row, _ in pieces])
        looks = [look for number in range(len(CUTS)) for look in self._look_back(number, prior)]
        alone, others = (np.concatenate(logs) for logs in zip(*(self._judge(*look) for look in looks), strict=True))
        shares, width = learn_pool(alone, others, WIDTHS)
        self._learnt = replace(self._learnt, log_prior=prior.weights, shares=shares, width=width)
        trust = self._learn_trust([(batch.with_lesson(self._learnt), step) for batch, step in looks])
        self._learnt = replace(self._learnt, trust=trust)

    def _look_back(self, cut: int, prior: Prior) -> list[_Look]:
        """Ended curves at a cut, each with a prior that was learned without it.

        They are predicted halfway to the horizon, and at the horizon. If there are too many, each cut looks at other
        ones.
        """
        now, every = CUTS[cut] * self.horizon, self._learnt.drift.rows
        soon = round((now + self.horizon) / 2)
        far = [row for row in every if row.curve.last_step >= soon] or every
        ended = _evenly(far, MOST_LOOKED_BACK, cut / len(CUTS))
        rows = [earlier for row in ended if (earlier := row.truncate(now)).curve.steps] or ended
        views = [self._view(row) for row in rows]
        fits = posteriors(views, prior.leave_out([row.itself for row in rows]))
        batch = Batch(self._learnt, self.horizon, rows, views, fits)
        return [(batch, step) for step in (soon, self.horizon)]

    def _outcomes(self, batch: Batch, step: int) -> tuple[Array, Flags]:
        """The later values of the curves, and which curves to judge: the ones without a bend up to there."""
        drift, itself = self._learnt.drift, [row.itself for row in batch.rows]
        there = (drift.last_step[itself] >= step) & (batch.last_step < step)
        return drift.values(step)[itself], there & ~batch.bend_before(step)

    def _judge(self, batch: Batch, step: int) -> tuple[Array, Array]:
        """The log density of the outcomes, for curves with enough peers: by the curve alone, and by the other
        predictions.
        """
        came, usable = self._outcomes(batch, step)
        alone, kernels = batch.alone(step), batch.others(step)
        usable &= kernels.peers >= ENOUGH
        widths = [alone.spread_by(width) for width in WIDTHS]
        others = [kernels.plain, kernels.similar, batch.surprise()]
        first, second = (np.stack([one.log_density(came) for one in each], axis=1)[usable] for each in (widths, others))
        return first, second

    def _learn_trust(self, looks: Sequence[_Look]) -> Array:
        """How far to trust the last value about a target: see `learning.learn_trust`."""
        columns = [np.empty((4, 0))]
        for batch, step in looks:
            came, usable = self._outcomes(batch, step)
            mixtures, part = batch.predict(step), batch.last_step / self.horizon
            for target in np.quantile(came[usable], TARGETS) if usable.any() else ():
                predicted = 1 - mixtures.below(np.full(len(came), target))
                columns.append(np.stack([part, predicted, batch.last >= target, came >= target])[:, usable])
        return learn_trust(*np.concatenate(columns, axis=1))


def _evenly(several: Sequence[Item], most: int, after: float = 0.0) -> Sequence[Item]:
    """All items, or `most` of them evenly spread; `after` (0 to 1) shifts the choice towards the next one."""
    number = len(several)
    return several if number <= most else [several[int((i + after) * number / most)] for i in range(most)]
