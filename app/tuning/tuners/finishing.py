"""`finish_best`: when a tuner is done, the best of the trials that it ended early are trained to `max_steps`.

The tuner itself sees none of that. A trial that it would stop is held while it is among the best of those: a stopped
trial can never be trained again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.domain.commands import Extend, Stop
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.tuning.tuners.base import Context, Next, Tuner
from stagetree.spec import StudySpec

FINISH = "finish"
"""In the reason of a promotion to `max_steps` at the end: the trial's place among those, from 1."""


class Finishing(Tuner):
    """The tuner, and after it the promotion of the `finish_best` best trials that have not come to `max_steps`.

    Best by the study's `value`: the last result, or the best one. A trial that fails on the way is not replaced. Where
    the study is reopened and begins more trials, as many are trained to the end once more.
    """

    def __init__(self, spec: StudySpec, tuner: Tuner) -> None:
        super().__init__(spec)
        fields: Any = spec.tuner
        self.eager, self.open_ended = tuner.eager, tuner.open_ended  # type: ignore[misc]
        self._tuner, self._most, self._steps = tuner, fields.finish_best, fields.max_steps
        self._by_best = spec.value == "best"
        self._asked, self._losses = dict[int, int](), dict[int, float]()  # by trial; losses of those that may go on
        self._open, self._finishing = set[int](), set[int]()
        self._held: dict[int, Stop] = {}
        self._granted = 0

    def set_max_trials(self, trials: int) -> None:
        self._tuner.set_max_trials(trials)

    def set_context(self, context: Context) -> None:
        self._tuner.set_context(context)

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
        """Let the tuner see it, and hold what it would stop."""
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
                self._losses[trial] = self._loss_of(trial, self.loss(event))
                if event.steps >= self._asked[trial]:
                    self._open.discard(trial)
            case TrialEventKind.FAIL | TrialEventKind.STOP | TrialEventKind.CANCEL:
                self._losses.pop(trial, None)
                self._open.discard(trial)
        if event.kind == TrialEventKind.CANCEL:
            self._held.pop(trial, None)
        if math.isinf(self._losses.get(trial, 0.0)):
            del self._losses[trial]

    def _loss_of(self, trial: int, loss: float) -> float:
        return min(loss, self._losses.get(trial, loss)) if self._by_best else loss

    def suggest(self) -> Next | None:
        if len(self._held) > self._most:
            return self._held[max(self._held, key=self._place)]
        if (action := self._tuner.suggest()) is not None or self._open - self._finishing:
            return action
        left = self._ended_early() if self._granted < self._most else []
        if left:
            reason = {FINISH: self._granted + 1, "of": self._granted + len(left), "loss": self._losses[left[0]]}
            return Extend(trial=left[0], steps=self._steps, reason=reason)
        return next(iter(self._held.values()), None)

    def suggest_many(self, most: int) -> Sequence[Next]:
        if len(self._held) <= self._most and self._tuner.suggest() is not None:
            return self._tuner.suggest_many(most)
        return super().suggest_many(most)

    def _ended_early(self) -> list[int]:
        """The trials that may be trained to the end, the best first."""
        early = (trial for trial in self._losses if self._asked[trial] < self._steps)
        return sorted(early, key=self._place)

    def _place(self, trial: int) -> tuple[float, int]:
        return self._losses[trial], trial
