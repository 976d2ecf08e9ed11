"""Successive halving (ASHA paper, Algorithm 1): every rung is a barrier, and the best 1/eta of it go on together."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from app.domain.commands import Extend
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.tuning.tuners.base import NewTrial, Next, Tuner
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import rung_steps

Scored = tuple[float, int]
"""(loss, trial): less is better, ties go to the trial that was started first."""


class RungScores:
    """The results at one rung, best first, and who went on from there."""

    def __init__(self) -> None:
        self.scores: list[Scored] = []
        self.promoted: set[int] = set()
        self._waiting: list[Scored] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, loss: float, trial: int) -> None:
        """A trial came to this rung with this loss; infinite if it failed on the way: worst, and never to go on."""
        insort(self.scores, (loss, trial))
        if math.isfinite(loss):
            heappush(self._waiting, (loss, trial))

    def remove(self, trial: int) -> None:
        """The trial does not count any more: a user cancelled it. Where it went on it took its place, and keeps it."""
        if trial not in self.promoted:
            self.scores = [scored for scored in self.scores if scored[1] != trial]
            self._waiting = sorted(scored for scored in self._waiting if scored[1] != trial)

    def promote(self, trial: int) -> None:
        """The trial goes on."""
        self.promoted.add(trial)

    def best_waiting(self) -> Scored | None:
        """The best result whose trial has not gone on."""
        while self._waiting and self._waiting[0][1] in self.promoted:
            heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    def rank(self, scored: Scored) -> int:
        """How many results are better, from 0."""
        return bisect_left(self.scores, scored)


class SyncBracket:
    """One bracket of `width` configurations, of which rung i is given to floor(width / eta^i), but to one at least.

    The counts are of configurations begun: where some failed or were cancelled, as many go on if there are any.
    entered, settled: how many trials came to each rung, and how many of those have a result there, failed or were
    cancelled.
    """

    def __init__(self, width: int, steps: list[int], factor: int) -> None:
        self.width, self.steps, self.factor = width, steps, factor
        self.rungs = [RungScores() for _ in steps]
        self.entered, self.settled = [0] * len(steps), [0] * len(steps)
        self._at: dict[int, int] = {}
        self._open: set[int] = set()  # trials on their way to their rung

    def observe(self, event: TrialEvent, loss: float) -> None:
        """Take in an event about one of the bracket's trials."""
        match event.kind:
            case TrialEventKind.START:
                self._enter(event.trial, 0)
            case TrialEventKind.PROMOTE:
                self.rungs[self._at[event.trial]].promote(event.trial)
                self._enter(event.trial, self._at[event.trial] + 1)
            case TrialEventKind.RESULT if event.steps != self.steps[self._at[event.trial]]:
                pass  # somebody else asked for that
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                self.rungs[self._at[event.trial]].add(loss, event.trial)
                self._settle(event.trial)
            case TrialEventKind.CANCEL:
                for rung in self.rungs:
                    rung.remove(event.trial)
                self._settle(event.trial)

    def suggest(self) -> Next | None:
        """A new configuration for the bottom rung, or a promotion out of a rung that is complete."""
        return self.start() or self.promotion()

    def start(self) -> NewTrial | None:
        """A new configuration, as long as the bottom rung has room: whatever the results."""
        return NewTrial(steps=self.steps[0], reason={"rung": 0}) if self.entered[0] < self.width else None

    def starts(self, most: int) -> list[Next]:
        """Up to `most` configurations for the bottom rung."""
        start = self.start()
        return [] if start is None else [start] * min(most, self.width - self.entered[0])

    def promotion(self) -> Extend | None:
        """The next promotion out of a rung that is complete, from the bottom up."""
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
        """Whether all trials at a rung are settled; the rungs below know of those that have yet to come up."""
        return self.settled[number] == self.entered[number]

    def _promotion(self, number: int) -> Extend | None:
        """The next of top_k(T, L, n_i / eta) at a complete rung."""
        rung, keep = self.rungs[number], max(1, self.width // self.factor ** (number + 1))
        best = rung.best_waiting()
        if best is None or (rank := rung.rank(best)) >= keep:
            return None
        reason = {"rung": number + 1, "rank": rank + 1, "cut": keep, "of": len(rung), "loss": best[0]}
        return Extend(trial=best[1], steps=self.steps[number + 1], reason=reason)


class Sha(Tuner):
    """One bracket of synchronous successive halving."""

    eager = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        steps = rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)
        self._bracket = SyncBracket(tuner.num_trials, steps, tuner.reduction_factor)

    def set_max_trials(self, trials: int) -> None:
        self._bracket.width = min(self._bracket.width, trials)

    def observe(self, event: TrialEvent) -> None:
        self._bracket.observe(event, self.loss(event))

    def suggest(self) -> Next | None:
        return self._bracket.suggest()

    def suggest_many(self, most: int) -> Sequence[Next]:
        return self._bracket.starts(most) or super().suggest_many(most)
