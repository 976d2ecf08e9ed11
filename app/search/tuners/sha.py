"""Successive halving, synchronous and asynchronous (ASHA).

Successive halving (ASHA paper, Algorithm 1): every rung is a barrier, and its best 1/eta are promoted together.

ASHA (Li et al. 2020, Algorithm 2) has no barriers: a trial is promoted as soon as it is in the top 1/eta of the results
at its rung. In the promotion type, each trial waits at its rung. For a free slot, rungs are searched from the top down
for the best trial of the top 1/eta that was not promoted; if there is none, a new configuration starts. A trial may be
promoted later, when more results have widened the top 1/eta.

With several metrics, or constraints, `app.domain.objectives` orders the results of a rung.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.domain.commands import Extend
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import Key, NewTrial, Next, Tuner
from app.search.tuners.forecasts import Forecasts
from app.search.tuners.rungs import MakeRung, RungScores, rung_maker
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import rung_steps


class SyncBracket:
    """One bracket of `width` configurations, of which rung i is given to floor(width / eta^i), but to one at least.

    The counts refer to started configurations: if some failed or were cancelled, as many are promoted if available.
    entered, settled: how many trials reached each rung, and how many of those have a result there, failed or were
    cancelled.
    """

    def __init__(self, width: int, steps: list[int], factor: int, make_rung: MakeRung = RungScores) -> None:
        self.width, self.steps, self.factor = width, steps, factor
        self.rungs = [*map(make_rung, range(len(steps)))]
        self.entered, self.settled = [0] * len(steps), [0] * len(steps)
        self._at: dict[int, int] = {}
        self._open: set[int] = set()  # trials that have not reached their rung

    def observe(self, event: TrialEvent, loss: Key) -> None:
        """Take in an event of one of the bracket's trials."""
        match event.kind:
            case TrialEventKind.START:
                self._enter(event.trial, 0)
            case TrialEventKind.PROMOTE:
                self.rungs[self._at[event.trial]].promote(event.trial)
                self._enter(event.trial, self._at[event.trial] + 1)
            case TrialEventKind.RESULT if event.steps != self.steps[self._at[event.trial]]:
                pass  # requested by a user or another study
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                self.rungs[self._at[event.trial]].add(loss, event.trial)
                self._settle(event.trial)
            case TrialEventKind.CANCEL:
                for rung in self.rungs:
                    rung.remove(event.trial)
                self._settle(event.trial)

    def suggest(self) -> Next | None:
        """A new configuration for the bottom rung, or a promotion from a complete rung."""
        return self.start() or self.promotion()

    def start(self) -> NewTrial | None:
        """A new configuration while the bottom rung has room; it does not depend on results."""
        return NewTrial(steps=self.steps[0], reason={"rung": 0}) if self.entered[0] < self.width else None

    def starts(self, most: int) -> list[Next]:
        """Up to `most` configurations for the bottom rung."""
        start = self.start()
        return [] if start is None else [start] * min(most, self.width - self.entered[0])

    def promotion(self) -> Extend | None:
        """The next promotion from a complete rung, from the bottom up."""
        for number in range(len(self.rungs) - 1):
            if not self._is_complete(number):
                return None
            if (promotion := self._promotion(number)) is not None:
                return promotion
        return None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be wanted, and nothing is under way."""
        return not self._open and self.suggest() is None

    def _enter(self, trial: int, number: int) -> None:
        self._at[trial] = number
        self.entered[number] += 1
        self._open.add(trial)

    def _settle(self, trial: int) -> None:
        if trial in self._open:
            self._open.discard(trial)
            self.settled[self._at[trial]] += 1

    def _is_complete(self, number: int) -> bool:
        """Whether all trials at a rung are settled. The rungs below know of trials that have not been promoted yet."""
        return self.settled[number] == self.entered[number]

    def _promotion(self, number: int) -> Extend | None:
        """The next of top_k(T, L, n_i / eta) at a complete rung."""
        rung, keep = self.rungs[number], max(1, self.width // self.factor ** (number + 1))
        if (up := rung.next_up(keep)) is None:
            return None
        reason = {"rung": number + 1, **rung.reason(up, keep)}
        return Extend(trial=up.trial, steps=self.steps[number + 1], reason=reason)


class Sha(Tuner):
    """One bracket of synchronous successive halving."""

    eager = takes_objectives = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        steps = rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)
        self._bracket = SyncBracket(tuner.num_trials, steps, tuner.reduction_factor, rung_maker(spec))

    def set_max_trials(self, trials: int) -> None:
        self._bracket.width = min(self._bracket.width, trials)

    def observe(self, event: TrialEvent) -> None:
        self._bracket.observe(event, self.key(event))

    def suggest(self) -> Next | None:
        return self._bracket.suggest()

    def suggest_many(self, most: int) -> Sequence[Next]:
        return self._bracket.starts(most) or super().suggest_many(most)


class Bracket:
    """One bracket: its rungs, and the rung of each trial."""

    def __init__(self, steps: list[int], factor: int, make_rung: MakeRung = RungScores) -> None:
        self.steps, self.factor = steps, factor
        self.rungs = [*map(make_rung, range(len(steps)))]
        self.rung_of: dict[int, int] = {}

    def observe(self, event: TrialEvent, loss: Key) -> None:
        """Take in an event of one of the bracket's trials."""
        match event.kind:
            case TrialEventKind.START:
                self.rung_of[event.trial] = 0
            case TrialEventKind.PROMOTE:
                self.rungs[self.rung_of[event.trial]].promote(event.trial)
                self.rung_of[event.trial] += 1
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                self._arrive(event, loss)
            case TrialEventKind.CANCEL:
                for rung in self.rungs:
                    rung.remove(event.trial)

    def _arrive(self, event: TrialEvent, loss: Key) -> None:
        rung = self.rung_of[event.trial]
        if event.kind == TrialEventKind.FAIL or event.steps == self.steps[rung]:
            self.rungs[rung].add(loss, event.trial)

    def promotion(self) -> Extend | None:
        """The next promotion, rungs from the top down (get_job, first half)."""
        for number in reversed(range(len(self.rungs) - 1)):
            rung = self.rungs[number]
            cut = len(rung) // self.factor
            if (up := rung.next_up(cut)) is not None:
                reason = {"rung": number + 1, **rung.reason(up, cut)}
                return Extend(trial=up.trial, steps=self.steps[number + 1], reason=reason)
        return None


class Asha(Tuner):
    """Promotion-type ASHA. `max_steps` makes the horizon finite; without it, trials may climb forever."""

    takes_objectives = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        steps = rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)
        self._bracket = Bracket(steps, tuner.reduction_factor, rung_maker(spec))
        self._limit, self._started = tuner.num_trials, 0

    def set_max_trials(self, trials: int) -> None:
        self._limit = min(self._limit, trials)

    def observe(self, event: TrialEvent) -> None:
        self._started += event.kind == TrialEventKind.START
        self._bracket.observe(event, self.key(event))

    def suggest(self) -> Next | None:
        promotion = self._bracket.promotion()
        if promotion is not None:
            return promotion
        if self._started < self._limit:
            return NewTrial(steps=self._bracket.steps[0], reason={"rung": 0})
        return None

    def starts_alike(self) -> int:
        return int(self._limit - self._started)


class AshaByPrediction(Asha):
    """ASHA that ranks a trial by the predicted value of its curve at `max_steps`, at the time when it reaches the rung.

    The prediction follows from the history, and is not updated later.
    """

    def __init__(self, spec: StudySpec, forecasts: Forecasts) -> None:
        super().__init__(spec)
        self._forecasts = forecasts

    def loss(self, event: TrialEvent) -> float:
        """The predicted metric, negated if more is better; the measured one at the top rung."""
        loss = super().loss(event)
        if not math.isfinite(loss) or event.steps >= self._forecasts.horizon:
            return loss
        mean = self._forecasts.posterior([event.trial]).mean([self._forecasts.horizon])[0, 0]
        return self._sign * float(f"{mean:.6g}")
