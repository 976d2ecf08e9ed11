"""Forecasts of the trials' final values from a study's history, for tuners that predict learning curves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

from app.domain.schedule import ScheduleSegment, segments
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.sequences import Scalar, is_same_value
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import MIN_EVALUATIONS
from stagetree.text import is_number

if TYPE_CHECKING:
    from app.search.curves import (
        Bend,
        Curve,
        Posterior,
    )  # NumPy is slow to import, so it is imported for the first curve

MOST = 64
"""How many changes are examined. A trial that changes more often changes continuously, and has no bends."""


def bends_of(hp: Mapping[str, Any], horizon: int) -> tuple[Bend, ...]:
    """The steps before the horizon at which a hyper-parameter jumps, each with the change: "lr x 0.1".

    Numbers are given by their ratio, so that equal decays are equal bends for any initial values.
    """
    before = takewhile(lambda segment: segment.start < horizon, segments(hp))
    changes = (_bend(*pair) for pair in pairwise(islice(before, MOST)))
    return tuple(bend for bend in changes if bend[1])


def _bend(before: ScheduleSegment, after: ScheduleSegment) -> Bend:
    was, now = before.values(after.start - 1), after.values(after.start)
    changes = (_change(name, was[name], now[name]) for name in now if not is_same_value(was[name], now[name]))
    return after.start, ", ".join(changes)


def _change(name: str, was: Scalar, now: Scalar) -> str:
    if is_number(was) and is_number(now) and was:
        return f"{name} x {float(now) / float(was):.3g}"  # type: ignore[arg-type]
    return f"{name} = {now}"


REFIT_SHARE = 0.1
REFIT_LEAST = 5
"""The model is refitted when a tenth more trials have reached the end, but at least five."""
GROWTH = 1.5
"""It is also refitted when the evaluations of all trials have grown by this factor."""


class Forecasts:
    """The curves of a study, a model that learns from them, and the ranks of trials at their steps.

    The model learns from the curves of all trials, including stopped ones. When it is refitted follows from the
    history.

    bounds: the least and the greatest value of the metric. horizon: the steps of a complete trial.
    """

    def __init__(self, spec: StudySpec, bounds: Sequence[float | None], horizon: int) -> None:
        from app.search.curves import CurveModel

        self._metric, self.horizon, self._sign = spec.metric, horizon, -1.0 if spec.mode == "max" else 1.0
        limits = (bounds[0], bounds[1])
        self._model = CurveModel(spec.mode, self.horizon, limits)
        self._points: dict[int, dict[int, float]] = {}
        self._bends: dict[int, tuple[Bend, ...]] = {}
        self._losses: dict[int, list[float]] = defaultdict(list)  # at each step, best first
        self._complete = 0  # trials that reached the horizon
        self._evaluations = 0
        self._learnt, self._learnt_evaluations = 0, 0  # from how many whole curves, and evaluations of all
        self._lesson: list[Curve] | None = None  # what must be learnt before the next prediction

    def observe(self, event: TrialEvent) -> None:
        """Take in an event of the study's history."""
        if event.kind == TrialEventKind.START:
            self._points[event.trial] = {}
            self._bends[event.trial] = bends_of(event.hp, self.horizon)
        elif event.kind == TrialEventKind.RESULT and (value := event.metrics[self._metric]) is not None:
            if event.steps not in self._points[event.trial]:
                insort(self._losses[event.steps], self._sign * value)
            self._points[event.trial][event.steps] = value
            self._evaluations += 1
            if event.steps == self.horizon:
                self._complete += 1
            self._learn()

    def curve(self, trial: int) -> Curve:
        """A trial's evaluations."""
        from app.search.curves import Curve

        points = sorted(self._points[trial].items())
        return Curve(tuple(step for step, _ in points), tuple(value for _, value in points), self._bends[trial])

    def rank(self, trial: int) -> tuple[int, int]:
        """The trial's rank by its last value, from 1, among all trials that reached that step; and their number.

        Equal values share the better rank. Trials that were stopped there count.
        """
        step = max(self._points[trial])
        others = self._losses[step]
        return 1 + bisect_left(others, self._sign * self._points[trial][step]), len(others)

    def ties(self, trial: int) -> int:
        """How many trials, with this one, have its last value at that step."""
        step = max(self._points[trial])
        loss, others = self._sign * self._points[trial][step], self._losses[step]
        return bisect_right(others, loss) - bisect_left(others, loss)

    def is_at_top(self, trial: int, part: float) -> bool:
        """Whether the trial is in the best part (0 to 1) of the trials that reached its last step.

        A fraction of a trial is rounded up, so that the best trial is in any part but 0.
        """
        rank, number = self.rank(trial)
        return rank - 1 < part * number

    def has_shape(self, trial: int) -> bool:
        """Whether it has enough evaluations to be stopped by its prediction."""
        return len(self._points[trial]) >= MIN_EVALUATIONS

    def posterior(self, trials: Iterable[int]) -> Posterior:
        """The prediction for some trials."""
        return self.predict([self.curve(trial) for trial in trials])

    def predict(self, curves: Sequence[Curve]) -> Posterior:
        """The prediction for some curves, of this study or not."""
        if self._lesson is not None:
            self._model.fit(self._lesson)
            self._lesson = None
        return self._model.predict(curves)

    def prob_reaches(self, trial: int, target: float) -> float:
        """P(y_m >= target) for a trial at step m, its horizon, rounded to four digits as recorded."""
        return round(float(self.posterior([trial]).prob_reaches([self.horizon], target)[0, 0]), 4)

    def _learn(self) -> None:
        more = self._complete >= self._learnt + max(REFIT_LEAST, REFIT_SHARE * self._learnt)
        many = self._evaluations >= max(REFIT_LEAST, GROWTH * self._learnt_evaluations)
        if more:
            self._learnt = self._complete
        if more or many:
            self._learnt_evaluations = self._evaluations
            self._lesson = [self.curve(trial) for trial, points in self._points.items() if points]
