"""EarlyTerm (Domhan et al. 2015, §4; HyperDrive, §5.3): a trial ends that will hardly come to the best value seen."""

from __future__ import annotations

import math
from typing import Any

from app.domain.search_plan import TrialEvent
from app.scheduling.tuners.forecasts import Forecasts
from app.scheduling.tuners.stopping import StoppingRule, Verdict
from stagetree.spec import StudySpec
from stagetree.spec.boundaries import steps_asked


class EarlyTerm(StoppingRule):
    """The predictive termination criterion: with P(y_m >= best so far) < delta at step m = max_steps, a trial ends.

    Not so one that is among the best `keep_top` of those that came to its step. It is asked every `boundary` steps.
    Where the study evaluates more often, trials are asked for those steps too, as points of their curves.
    """

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        super().__init__(spec, steps_asked(tuner.boundary, spec.eval_every, tuner.max_steps))
        self._boundary, self._delta, self._keep_top = tuner.boundary, tuner.delta, tuner.keep_top
        self._forecasts, self._best = Forecasts(spec, tuner.bounds, tuner.max_steps), math.inf

    def observe(self, event: TrialEvent) -> None:
        self._forecasts.observe(event)
        super().observe(event)

    def judge(self, point: int, trial: int, loss: float) -> Verdict:
        self._best = min(self._best, loss)
        steps, best = self.points[point], self.value(self._best)
        if steps % self._boundary or point + 1 == len(self.points) or best is None or not math.isfinite(loss):
            return True, {}
        if not self._forecasts.has_shape(trial):
            return True, {}
        p = self._forecasts.prob_reaches(trial, best)
        goes_on = p >= self._delta or self._forecasts.is_at_top(trial, self._keep_top)
        return goes_on, {"p": p, "delta": self._delta, "best_of_all": best}
