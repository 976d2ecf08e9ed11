"""ASHA (Li et al. 2020, Algorithm 2): a trial goes up as soon as it is in the top 1/eta of those seen at its rung.

Promotion type: each trial waits at its rung. When a slot is free, rungs are looked at from the top down and the best
trial of the top 1/eta that has not gone on does; if there is none anywhere, a new configuration starts. A trial that
was passed over may still go up when more results make the top 1/eta wider.
"""

from __future__ import annotations

import math
from typing import Any

from app.domain.commands import Extend
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.tuning.tuners.base import NewTrial, Next, Tuner
from app.tuning.tuners.forecasts import Forecasts
from app.tuning.tuners.sha import RungScores
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import rung_steps


class Bracket:
    """One bracket: its rungs, and at which of them each trial is."""

    def __init__(self, steps: list[int], factor: int) -> None:
        self.steps, self.factor = steps, factor
        self.rungs = [RungScores() for _ in steps]
        self.at: dict[int, int] = {}

    def observe(self, event: TrialEvent, loss: float) -> None:
        """Take in an event about one of the bracket's trials."""
        match event.kind:
            case TrialEventKind.START:
                self.at[event.trial] = 0
            case TrialEventKind.PROMOTE:
                self.rungs[self.at[event.trial]].promote(event.trial)
                self.at[event.trial] += 1
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                self._arrive(event, loss)
            case TrialEventKind.CANCEL:
                for rung in self.rungs:
                    rung.remove(event.trial)

    def _arrive(self, event: TrialEvent, loss: float) -> None:
        rung = self.at[event.trial]
        if event.kind == TrialEventKind.FAIL or event.steps == self.steps[rung]:
            self.rungs[rung].add(loss, event.trial)

    def promotion(self) -> Extend | None:
        """The next promotion, rungs from the top down (get_job, first half)."""
        for number in reversed(range(len(self.rungs) - 1)):
            rung = self.rungs[number]
            best = rung.best_waiting()
            cut = len(rung) // self.factor
            if best is not None and (rank := rung.rank(best)) < cut:
                reason = {"rung": number + 1, "rank": rank + 1, "cut": cut, "of": len(rung), "loss": best[0]}
                return Extend(trial=best[1], steps=self.steps[number + 1], reason=reason)
        return None


class Asha(Tuner):
    """Promotion-type ASHA. With `max_steps` the horizon is finite, without it trials may climb forever."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        steps = rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)
        self._bracket = Bracket(steps, tuner.reduction_factor)
        self._limit, self._started = tuner.num_trials, 0

    def set_max_trials(self, trials: int) -> None:
        self._limit = min(self._limit, trials)

    def observe(self, event: TrialEvent) -> None:
        self._started += event.kind == TrialEventKind.START
        self._bracket.observe(event, self.loss(event))

    def suggest(self) -> Next | None:
        promotion = self._bracket.promotion()
        if promotion is not None:
            return promotion
        if self._started < self._limit:
            return NewTrial(steps=self._bracket.steps[0], reason={"rung": 0})
        return None


class AshaByPrediction(Asha):
    """ASHA in which a trial counts by what its curve is foretold to come to at `max_steps`, when it comes to a rung.

    Everything else is as it is. What is foretold follows from the history, and is not foretold anew.
    """

    def __init__(self, spec: StudySpec, forecasts: Forecasts) -> None:
        super().__init__(spec)
        self._forecasts = forecasts

    def loss(self, event: TrialEvent) -> float:
        """The foretold metric, turned so that less is better; the measured one at the top rung."""
        loss = super().loss(event)
        if not math.isfinite(loss) or event.steps >= self._forecasts.horizon:
            return loss
        mean = self._forecasts.posterior([event.trial]).mean([self._forecasts.horizon])[0, 0]
        return self._sign * float(f"{mean:.6g}")
