"""Forecasts of the final value of each trial of a study, from its history: for tuners that predict learning curves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

from app.domain.schedule import ScheduleSegment, segments
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.sequences import Scalar, is_same_value
from stagetree.spec import StudySpec
from stagetree.spec.tuners.rungs import MIN_EVALUATIONS

if TYPE_CHECKING:
    from app.search.curves import Bend, Curve, Posterior  # NumPy is slow to import: where a curve is first looked at

MOST = 64
"""So many changes are looked at. A trial that changes more often does so all the time, and has no bends to speak of."""


def bends_of(hp: Mapping[str, Any], horizon: int) -> tuple[Bend, ...]:
    """The steps before the horizon at which a hyper-parameter jumps, each with what it does there: "lr x 0.1".

    Numbers by their ratio, so that two trials bend alike that decay alike, wherever they began.
    """
    before = takewhile(lambda segment: segment.start < horizon, segments(hp))
    changes = (_bend(*pair) for pair in pairwise(islice(before, MOST)))
    return tuple(bend for bend in changes if bend[1])


def _bend(before: ScheduleSegment, after: ScheduleSegment) -> Bend:
    was, now = before.values(after.start - 1), after.values(after.start)
    changes = (_change(name, was[name], now[name]) for name in now if not is_same_value(was[name], now[name]))
    return after.start, ", ".join(changes)


def _change(name: str, was: Scalar, now: Scalar) -> str:
    if _is_number(was) and _is_number(now) and was:
        return f"{name} x {float(now) / float(was):.3g}"  # type: ignore[arg-type]
    return f"{name} = {now}"


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


REFIT_SHARE = 0.1
REFIT_LEAST = 5
"""What trials teach is learnt anew when a tenth more of them have come to the end, but no fewer than five."""
GROWTH = 1.5
"""And when all of them together have so many times as many evaluations as they had then."""


class Forecasts:
    """The curves of a study, a model that learns from them, and the ranks of trials at the steps that they came to.

    The model learns from all curves as far as they came, those of stopped trials too. When it learns follows from the
    history.

    bounds: the least and the greatest value of the metric. horizon: the steps of a whole trial.
    """

    def __init__(self, spec: StudySpec, bounds: Sequence[float | None], horizon: int) -> None:
        from app.search.curves import CurveModel

        self._metric, self.horizon, self._sign = spec.metric, horizon, -1.0 if spec.mode == "max" else 1.0
        limits = (bounds[0], bounds[1])
        self._model = CurveModel(spec.mode, self.horizon, limits)
        self._points: dict[int, dict[int, float]] = {}
        self._bends: dict[int, tuple[Bend, ...]] = {}
        self._losses: dict[int, list[float]] = defaultdict(list)  # at each step, best first
        self._complete = 0  # trials that came to the horizon
        self._evaluations = 0
        self._learnt, self._learnt_evaluations = 0, 0  # from how many whole curves, and evaluations of all
        self._lesson: list[Curve] | None = None  # what must be learnt before the next prediction

    def observe(self, event: TrialEvent) -> None:
        """Take in a line of the study's history."""
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
        """The evaluations of a trial so far."""
        from app.search.curves import Curve

        points = sorted(self._points[trial].items())
        return Curve(tuple(step for step, _ in points), tuple(value for _, value in points), self._bends[trial])

    def rank(self, trial: int) -> tuple[int, int]:
        """The trial's rank by its last value, from 1, among all that came to that step; and how many they are.

        Equal values have the better rank. Trials that were stopped there count.
        """
        step = max(self._points[trial])
        others = self._losses[step]
        return 1 + bisect_left(others, self._sign * self._points[trial][step]), len(others)

    def is_at_top(self, trial: int, part: float) -> bool:
        """Whether the trial is among the best part (0 to 1) of those that came to its last step.

        A part of a trial counts as one, so that the best is at the top of any part but 0.
        """
        rank, number = self.rank(trial)
        return rank - 1 < part * number

    def has_shape(self, trial: int) -> bool:
        """Whether there are enough evaluations to end a trial by what is foretold of it."""
        return len(self._points[trial]) >= MIN_EVALUATIONS

    def posterior(self, trials: Iterable[int]) -> Posterior:
        """What some trials will come to."""
        return self.foretold([self.curve(trial) for trial in trials])

    def foretold(self, curves: Sequence[Curve]) -> Posterior:
        """What some curves will come to, be they of trials of this study or not."""
        if self._lesson is not None:
            self._model.fit(self._lesson)
            self._lesson = None
        return self._model.predict(curves)

    def prob_reaches(self, trial: int, target: float) -> float:
        """P(y_m >= target) of a trial at step m, its horizon, with the four digits that are recorded."""
        return round(float(self.posterior([trial]).prob_reaches([self.horizon], target)[0, 0]), 4)

    def _learn(self) -> None:
        more = self._complete >= self._learnt + max(REFIT_LEAST, REFIT_SHARE * self._learnt)
        many = self._evaluations >= max(REFIT_LEAST, GROWTH * self._learnt_evaluations)
        if more:
            self._learnt = self._complete
        if more or many:
            self._learnt_evaluations = self._evaluations
            self._lesson = [self.curve(trial) for trial, points in self._points.items() if points]
