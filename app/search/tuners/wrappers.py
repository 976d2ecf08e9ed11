"""Tuners that wrap another tuner, which does not notice.

`Watched` serves `stop_hopeless`, and tuners that promote by predictions: it has trials evaluated between the decisions
of the inner tuner, and ends hopeless ones. The inner tuner sees a trial when it has reached the requested step; a trial
that was ended before counts as failed, the worst of all.

`Finishing` serves `finish_best`: when the inner tuner is done, the best of the trials that it ended early are trained
to `max_steps`. Such a trial is held instead of stopped, because a stopped trial can never be trained again.

`RankedByRungValues` serves `rung_value`: when a trial has reached the requested step, a cooldown is branched off it, or
the mean of its last states is evaluated, and the inner tuner sees the result as the trial's own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from app.domain.commands import AveragedState, Extend, Start, Stop
from app.domain.rung_values import RUNG_AT, RungValues, cooldown_hp, trunk_of
from app.domain.search_plan import COOLDOWN_OF, MERGE_OF, TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import Context, Key, NewTrial, Next, Tuner
from app.search.tuners.forecasts import Forecasts
from app.search.tuners.rungs import is_result, key_in_words, sort_results
from stagetree.sequences.merging import merged_states
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import boundary_steps, requested_steps
from stagetree.spec.tuners.rung_values import CooldownValue

UNTIL = "until"
"""The key, in the reason of a start or a promotion, of the step up to which the inner tuner wants the trial."""
BETWEEN = "between"
"""The key, in the reason of a promotion, of one that the inner tuner does not see."""

Request = TypeVar("Request", NewTrial, Start, Extend)
Make = Callable[[StudySpec, Forecasts], Tuner]


class _Wrapper(Tuner):
    """A tuner that passes on what its caller sets."""

    def __init__(self, spec: StudySpec, tuner: Tuner) -> None:
        super().__init__(spec)
        self._tuner, self.open_ended = tuner, tuner.open_ended  # type: ignore[misc]

    def set_max_trials(self, trials: int) -> None:
        self._tuner.set_max_trials(trials)

    def set_context(self, context: Context) -> None:
        self._tuner.set_context(context)


class Watched(_Wrapper):
    """The tuner, with the study's `stop_hopeless` if it has that.

    A trial ends if P(y_m >= best so far) < delta at step m = max_steps. This is tested at earlier boundaries, for
    curves of at least four points. Trials in the best `keep_top` at their step are exempt.
    """

    def __init__(self, spec: StudySpec, tuner: Tuner, forecasts: Forecasts) -> None:
        super().__init__(spec, tuner)
        self._forecasts, self._hopeless = forecasts, spec.stop_hopeless
        most = forecasts.horizon
        self._boundary = boundary_steps(spec.stop_hopeless.boundary, most) if spec.stop_hopeless else most
        self._points = requested_steps(self._boundary, spec.eval_every, most)
        self._until, self._asked = dict[int, int](), dict[int, int]()  # requested by the tuner, and by us
        self._due: dict[int, Extend | Stop] = {}
        self._best = math.inf

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
        """The end of a trial that will hardly become the best."""
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
                return self._limit_steps(action, 0)
            case Start():
                return self._limit_steps(action, 0)
            case Extend():
                return self._limit_steps(action, self._asked[action.trial])
        return action

    def _limit_steps(self, action: Request, after: int) -> Request:
        """The action of the tuner, up to the next step that must be evaluated."""
        return replace(action, steps=self._next(after, action.steps), reason={**action.reason, UNTIL: action.steps})

    def _next(self, after: int, until: int) -> int:
        """The next step to request."""
        number = bisect_right(self._points, after)
        return min(self._points[number], until) if number < len(self._points) else until


def watch(spec: StudySpec, make: Make) -> Tuner:
    """Wrap the tuner that `make` makes of the study and its forecasts."""
    tuner: Any = spec.tuner
    hopeless, bounds = spec.stop_hopeless, getattr(tuner, "bounds", None)
    bounds = bounds or (hopeless.bounds if hopeless else (None, None))
    forecasts = Forecasts(spec, bounds, hopeless.end(tuner) if hopeless else tuner.max_steps)
    return Watched(spec, make(spec, forecasts), forecasts)


FINISH = "finish"
"""The key, in the reason of a final promotion to `max_steps`, of the trial's place among those, from 1."""


class Finishing(_Wrapper):
    """The tuner, and after it the promotion of the `finish_best` best trials that have not reached `max_steps`.

    Best by the study's `value`: the last result, or the best one. A trial that fails on the way is not replaced. If the
    study is reopened and starts more trials, as many are finished once more.
    """

    def __init__(self, spec: StudySpec, tuner: Tuner) -> None:
        super().__init__(spec, tuner)
        fields: Any = spec.tuner
        self.eager = tuner.eager  # type: ignore[misc]
        self._most, self._steps = fields.finish_best, fields.max_steps
        self._by_best = spec.value == "best"
        self._asked, self._losses = dict[int, int](), dict[int, Key]()  # by trial; losses of resumable trials
        self._open, self._finishing = set[int](), set[int]()
        self._held: dict[int, Stop] = {}
        self._granted = 0

    def observe(self, event: TrialEvent) -> None:
        self._note(event)
        if FINISH in event.reason:
            self._finishing.add(event.trial)
            self._granted += 1
            self._held.pop(event.trial, None)
            self._tuner.observe(replace(event, kind=TrialEventKind.CANCEL))  # it can promote the trial no more
        elif event.trial not in self._finishing:
            self._tell(event)

    def _tell(self, event: TrialEvent) -> None:
        """Show the tuner an event, and hold the trials that it would stop."""
        if event.kind != TrialEventKind.STOP or self._held.pop(event.trial, None) is None:
            self._tuner.observe(event)
        while isinstance(stop := self._tuner.suggest(), Stop) and stop.trial in self._losses:
            self._held[stop.trial] = stop
            steps = self._asked[stop.trial]
            self._tuner.observe(TrialEvent(TrialEventKind.STOP, stop.trial, steps, reason=stop.reason))

    def _note(self, event: TrialEvent) -> None:
        trial = event.trial
        match event.kind:
            case TrialEventKind.START | TrialEventKind.PROMOTE:
                self._granted = 0 if event.kind == TrialEventKind.START else self._granted
                self._asked[trial] = event.steps
                self._open.add(trial)
            case TrialEventKind.RESULT:
                self._losses[trial] = self._loss_of(trial, self.key(event))
                if event.steps >= self._asked[trial]:
                    self._open.discard(trial)
            case TrialEventKind.FAIL | TrialEventKind.STOP | TrialEventKind.CANCEL:
                self._losses.pop(trial, None)
                self._open.discard(trial)
        if event.kind == TrialEventKind.CANCEL:
            self._held.pop(trial, None)
        if trial in self._losses and not is_result(self._losses[trial]):
            del self._losses[trial]

    def _loss_of(self, trial: int, loss: Key) -> Key:
        return min(loss, self._losses.get(trial, loss)) if self._by_best else loss

    def suggest(self) -> Next | None:
        if len(self._held) > self._most:
            return self._held[max(self._held, key=lambda trial: (self._losses[trial], trial))]
        if (action := self._tuner.suggest()) is not None or self._open - self._finishing:
            return action
        left = self._ended_early() if self._granted < self._most else []
        if left:
            reason = {FINISH: self._granted + 1, "of": self._granted + len(left), **key_in_words(self._losses[left[0]])}
            return Extend(trial=left[0], steps=self._steps, reason=reason)
        return next(iter(self._held.values()), None)

    def suggest_many(self, most: int) -> Sequence[Next]:
        if len(self._held) <= self._most and self._tuner.suggest() is not None:
            return self._tuner.suggest_many(most)
        return super().suggest_many(most)

    def _ended_early(self) -> list[int]:
        """The trials that may be finished, best first."""
        early = (trial for trial in self._losses if self._asked[trial] < self._steps)
        return [trial for _, trial in sort_results((self._losses[trial], trial) for trial in early)]


class RankedByRungValues(_Wrapper):
    """The tuner, whose trials are ranked by a cooldown or a merge before it uses their results.

    These come before other actions, because the tuner needs them to rank the trial; but not before the starts of an
    eager tuner, which depend on no result.
    """

    def __init__(self, spec: StudySpec, tuner: Tuner) -> None:
        super().__init__(spec, tuner)
        fields: Any = spec.tuner
        self.eager, self._value = tuner.eager, fields.rung_value  # type: ignore[misc]
        self._rung_values = RungValues({"rung_value": self._value})
        self._hp, self._asked = dict[int, Mapping[str, Any]](), dict[int, int]()  # by trial
        self._due = dict[int, Start]()  # by trial

    def observe(self, event: TrialEvent) -> None:
        trial = event.trial
        match event.kind:
            case TrialEventKind.START if (trunk := trunk_of(event.reason)) is not None:
                self._due.pop(trunk, None)
            case TrialEventKind.START:
                self._hp[trial], self._asked[trial] = event.hp, event.steps
            case TrialEventKind.PROMOTE:
                self._asked[trial] = event.steps
            case TrialEventKind.RESULT if event.steps == self._asked.get(trial):
                self._due[trial] = self._start(trial, event.steps)
            case TrialEventKind.FAIL | TrialEventKind.STOP | TrialEventKind.CANCEL:
                self._due.pop(trial, None)
        if (understood := self._rung_values.read(event)) is not None:
            self._tuner.observe(understood)

    def _start(self, trial: int, at: int) -> Start:
        return self._cooldown(trial, at) if isinstance(self._value, CooldownValue) else self._merge(trial, at)

    def _merge(self, trial: int, at: int) -> Start:
        """The trial that is the mean of another one's last states at step `at`, the latest first."""
        states = reversed(merged_states(self._value.model_dump(), at))
        return Start(
            hp=dict(self._hp[trial]),
            steps=at,
            reason={MERGE_OF: trial, RUNG_AT: at},
            average_of=tuple(AveragedState(trial, step, weight) for step, weight in states),
        )

    def _cooldown(self, trial: int, at: int) -> Start:
        """The trial that is branched off another one after step `at`."""
        value, hp, steps = self._value, self._hp[trial], self._value.steps(at)
        hp = cooldown_hp(hp, at, steps, falling=filter(value.falls, hp), shape=value.shape, final=value.final)
        return Start(hp=hp, steps=at + steps, reason={COOLDOWN_OF: trial, RUNG_AT: at})

    def suggest(self) -> Next | None:
        return next(iter(self.suggest_many(1)), None)

    def suggest_many(self, most: int) -> Sequence[Next]:
        actions = self._tuner.suggest_many(most)
        if not self._due or (self.eager and actions and isinstance(actions[0], NewTrial)):
            return actions
        return list(self._due.values())[:most]
