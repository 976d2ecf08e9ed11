"""Stopping rules: a trial is requested up to its next decision point only, and is then extended at once or stopped.

An extension continues the same trial, so no step is trained twice. A decision uses the results known when the trial
reached its decision point, so it depends on the order of results and on nothing else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from app.domain.commands import Extend, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import NewTrial, Next, Tuner
from app.search.tuners.forecasts import Forecasts
from app.search.tuners.rungs import rung_maker
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import requested_steps, rung_steps

Reason = dict[str, Any]
Verdict = tuple[bool, Reason]
"""(whether the trial continues, why)"""


class StoppingRule(Tuner):
    """The base of stopping rules. A subclass judges each trial at each decision point but the last."""

    def __init__(self, spec: StudySpec, points: Sequence[int]) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        self.points = points
        self._limit, self._started = tuner.num_trials, 0
        self._at: dict[int, int] = {}  # the next decision point of each trial
        self._due: dict[int, Extend | Stop] = {}  # decisions that are not yet granted, oldest first

    @abstractmethod
    def judge(self, point: int, trial: int, loss: float) -> Verdict:
        """Take in that a trial reached decision point number `point`, and decide whether it continues.

        The loss is infinite if the trial failed on the way; then the verdict is ignored.
        """

    def set_max_trials(self, trials: int) -> None:
        self._limit = min(self._limit, trials)

    def observe(self, event: TrialEvent) -> None:
        match event.kind:
            case TrialEventKind.START:
                self._started += 1
                self._at[event.trial] = 0
            case TrialEventKind.PROMOTE:
                self._due.pop(event.trial, None)
                self._at[event.trial] += 1
            case TrialEventKind.STOP | TrialEventKind.CANCEL:
                self._due.pop(event.trial, None)
            case TrialEventKind.FAIL:
                self.judge(self._at[event.trial], event.trial, math.inf)
            case TrialEventKind.RESULT if event.steps == self.points[self._at[event.trial]]:
                self._decide(event.trial, self.loss(event))

    def suggest(self) -> Next | None:
        if self._due:
            return next(iter(self._due.values()))
        return NewTrial(steps=self.points[0], reason={"rung": 0}) if self._started < self._limit else None

    def starts_alike(self) -> int:
        return int(self._limit - self._started)

    def value(self, loss: float) -> float | None:
        """A loss as the user's metric; None for a failed trial."""
        return self._sign * loss if math.isfinite(loss) else None

    def _decide(self, trial: int, loss: float) -> None:
        point = self._at[trial]
        goes_on, reason = self.judge(point, trial, loss)
        if point + 1 == len(self.points):
            return
        if goes_on:
            reason = {"rung": point + 1, **reason}
            self._due[trial] = Extend(trial=trial, steps=self.points[point + 1], reason=reason)
        else:
            self._due[trial] = Stop(trial=trial, reason={"rung": point, **reason})


def every(interval: int, most: int) -> list[int]:
    """The multiples of `interval` below `most`, and `most`."""
    return [*range(interval, most, interval), most]


class AshaStopping(StoppingRule):
    """Stopping-type ASHA: a trial continues at once if it is in the top 1/eta at its rung, including itself.

    There is at least one place, so the best trial of a rung continues. A failed trial counts as the worst at its rung.
    No trial waits for the top 1/eta to widen: stopped trials stay stopped. (Not in the ASHA paper; later systems ship
    it under that name.)
    """

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        super().__init__(
            spec, rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)
        )
        self._factor, self.rungs = tuner.reduction_factor, [*map(rung_maker(spec), range(len(self.points)))]

    def judge(self, point: int, trial: int, loss: float) -> Verdict:
        rung = self.rungs[point]
        rung.add(loss, trial)
        ranked, cut = rung.rank(loss, trial), max(1, len(rung) // self._factor)
        return ranked.rank < cut, rung.reason(ranked, cut)


class Median(StoppingRule):
    """The median stopping rule (Golovin et al. 2017, Google Vizier, §3.2.2).

    At decision point t a trial is stopped if its best value so far is worse than the median of the running averages, up
    to t, of all other trials that reached t before it. A failed trial counts as the worst. Averages are exact and
    rounded once, so a trial with equal values has them as its average.
    """

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        super().__init__(spec, every(tuner.interval or spec.eval_every or tuner.max_steps, tuner.max_steps))
        self._min_steps, self._min_trials = tuner.min_steps, tuner.min_trials
        self._averages: dict[int, list[float]] = defaultdict(list)  # at each decision point, sorted
        self._best: dict[int, float] = {}
        self._sum: dict[int, Fraction] = defaultdict(Fraction)

    def judge(self, point: int, trial: int, loss: float) -> Verdict:
        best = self._best[trial] = min(loss, self._best.get(trial, math.inf))
        others = self._averages[point]
        verdict = self._compare(point, best, others)
        insort(others, self._running_average(point, trial, loss))
        return verdict

    def _running_average(self, point: int, trial: int, loss: float) -> float:
        if math.isinf(loss):
            return loss
        self._sum[trial] += Fraction(loss)
        return float(self._sum[trial] / (point + 1))

    def _compare(self, point: int, best: float, others: list[float]) -> Verdict:
        if self.points[point] < self._min_steps or len(others) < self._min_trials:
            return True, {"of": len(others)}
        median = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        return best <= median, {"of": len(others), "best": self.value(best), "median": self.value(median)}


class Bandit(StoppingRule):
    """The bandit policy of HyperDrive (Rasley et al. 2017, §5.3), after action elimination in TuPAQ.

    A trial continues if jobBest * (1 + epsilon) > globalBest, the best value of any trial at any step. If less is
    better, or values are negative, the other one is multiplied: the one nearer to 0. Values of different sign are never
    close, and the best trial always continues.
    """

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        super().__init__(spec, every(tuner.interval, tuner.max_steps))
        self._epsilon, self._best_of_all, self._best = tuner.epsilon, math.inf, dict[int, float]()

    def judge(self, point: int, trial: int, loss: float) -> Verdict:
        best = self._best[trial] = min(loss, self._best.get(trial, math.inf))
        self._best_of_all = min(best, self._best_of_all)
        reason = {"best": self.value(best), "best_of_all": self.value(self._best_of_all)}
        return _is_close(best, self._best_of_all, self._epsilon), reason


def _is_close(one: float, other: float, epsilon: float) -> bool:
    near, far = sorted((abs(one), abs(other)))
    return one == other or (one * other > 0 and near * (1 + epsilon) > far)


class EarlyTerm(StoppingRule):
    """The predictive termination criterion: a trial ends if P(y_m >= best so far) < delta at step m = max_steps.

    Trials in the best `keep_top` at their step are exempt. It is applied every `boundary` steps. If the study evaluates
    more often, trials are requested up to those steps too, as points of their curves.
    """

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        super().__init__(spec, requested_steps(tuner.boundary, spec.eval_every, tuner.max_steps))
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
