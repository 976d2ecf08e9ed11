"""Another tuner's trials, watched on their way: curves are evaluated between its decisions, and hopeless trials end.

The tuner itself sees none of that. It is told of a trial when it has come as far as it was asked to; one that was ended
on its way is to it a trial that failed there, the worst of all.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from app.domain.commands import Extend, Start, Stop
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.tuning.tuners.base import Context, NewTrial, Next, Tuner
from app.tuning.tuners.forecasts import Forecasts
from stagetree.spec import StudySpec
from stagetree.spec.rungs import boundary_of, steps_asked

UNTIL = "until"
"""In the reason of a start or a promotion: how far the tuner wants the trial, by way of the steps it is asked for."""
BETWEEN = "between"
"""In the reason of a promotion: the tuner knows nothing of it."""

Request = TypeVar("Request", NewTrial, Start, Extend)
Make = Callable[[StudySpec, Forecasts], Tuner]


class Watched(Tuner):
    """The tuner, with `stop_hopeless` of the study, if it has that.

    A trial ends where P(y_m >= best so far) < delta at step m = max_steps: asked at boundaries before that, of curves
    that have four points or more. Not one that is among the best `keep_top` of those that came to its step.
    """

    def __init__(self, spec: StudySpec, tuner: Tuner, forecasts: Forecasts) -> None:
        super().__init__(spec)
        self.open_ended = tuner.open_ended  # type: ignore[misc]
        self._tuner, self._forecasts, self._hopeless = tuner, forecasts, spec.stop_hopeless
        most = forecasts.horizon
        self._boundary = boundary_of(spec.stop_hopeless.boundary, most) if spec.stop_hopeless else most
        self._points = steps_asked(self._boundary, spec.eval_every, most)
        self._until, self._asked = dict[int, int](), dict[int, int]()  # of each trial, by the tuner and by us
        self._due: dict[int, Extend | Stop] = {}
        self._best = math.inf

    def set_max_trials(self, trials: int) -> None:
        self._tuner.set_max_trials(trials)

    def set_context(self, context: Context) -> None:
        self._tuner.set_context(context)

    def observe(self, event: TrialEvent) -> None:
        self._forecasts.observe(event)
        if event.kind != TrialEventKind.RESULT:
            self._due.pop(event.trial, None)
        match event.kind:
            case TrialEventKind.START | TrialEventKind.PROMOTE:
                self._take_request(event)
            case TrialEventKind.RESULT:
                self._take_result(event)
            case TrialEventKind.STOP if "delta" in event.reason:
                self._tuner.observe(replace(event, kind=TrialEventKind.FAIL))
            case _:
                self._tuner.observe(event)

    def _take_request(self, event: TrialEvent) -> None:
        self._asked[event.trial] = event.steps
        if not event.reason.get(BETWEEN):
            self._until[event.trial] = int(event.reason.get(UNTIL, event.steps))
            self._tuner.observe(replace(event, steps=self._until[event.trial]))

    def _take_result(self, event: TrialEvent) -> None:
        self._best = min(self._best, self.loss(event))
        if event.steps >= self._until[event.trial]:
            self._tuner.observe(event)
        elif event.steps == self._asked[event.trial]:
            self._due[event.trial] = self._stop(event) or self._extend(event.trial, self._until[event.trial])

    def _stop(self, event: TrialEvent) -> Stop | None:
        """The end of a trial that will hardly come to the best."""
        trial, best = event.trial, self._sign * self._best
        if self._hopeless is None or event.steps >= self._forecasts.horizon:
            return None
        if event.steps % self._boundary or not self._forecasts.has_shape(trial):
            return None
        if self._forecasts.is_at_top(trial, self._hopeless.keep_top):
            return None
        p = self._forecasts.prob_reaches(trial, best)
        reason = {"p": p, "delta": self._hopeless.delta, "best_of_all": best}
        return Stop(trial=trial, reason=reason) if p < self._hopeless.delta else None

    def _extend(self, trial: int, until: int) -> Extend:
        return Extend(trial=trial, steps=self._next(self._asked[trial], until), reason={UNTIL: until, BETWEEN: True})

    def suggest(self) -> Next | None:
        if self._due:
            return next(iter(self._due.values()))
        action = self._tuner.suggest()
        match action:
            case NewTrial():
                return self._by_way(action, 0)
            case Start():
                return self._by_way(action, 0)
            case Extend():
                return self._by_way(action, self._asked[action.trial])
        return action

    def _by_way(self, action: Request, after: int) -> Request:
        """What the tuner wants, as far as the next step that is to be evaluated."""
        return replace(action, steps=self._next(after, action.steps), reason={**action.reason, UNTIL: action.steps})

    def _next(self, after: int, until: int) -> int:
        """The next step that a trial is asked for."""
        number = bisect_right(self._points, after)
        return min(self._points[number], until) if number < len(self._points) else until


def watched(spec: StudySpec, make: Make) -> Tuner:
    """The tuner that `make` makes of the study and its forecasts, watched."""
    tuner: Any = spec.tuner
    hopeless, bounds = spec.stop_hopeless, getattr(tuner, "bounds", None)
    bounds = bounds or (hopeless.bounds if hopeless else (None, None))
    forecasts = Forecasts(spec, bounds, hopeless.end(tuner) if hopeless else tuner.max_steps)
    return Watched(spec, make(spec, forecasts), forecasts)
