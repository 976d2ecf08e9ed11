"""POP (Rasley et al. 2017, HyperDrive, §3 and §5.3): slots go to the trials that will reach the target.

At each boundary a trial is judged: how likely it reaches the target before time is up (p), and how soon. Promising
trials continue in slots of their own. Opportunistic ones take turns of one boundary each in the other slots, in the
order that `order_by` names. Poor ones end. A trial without a request is suspended: its state is in the plan, and any
slot can resume it.

Each judgement is recorded with its numbers, as an action that sets the trial's priority or ends it. Replay reads clock
and slots from there, so that the history alone determines the study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.domain.commands import Extend, Prioritize, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import Context, NewTrial, Next, Tuner
from app.search.tuners.forecasts import Forecasts
from app.search.tuners.promising import FORETOLD, ForecastProof, Pools, divide, rank_confidence
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import boundary_steps, requested_steps

Judgement = Mapping[str, Any]
"""The recorded reason of a trial's last judgement."""

UNKNOWN = 0.5
"""The worth of a trial where all results at its step are equal: half of the slots train such trials, and new trials
begin in the others. Less worth is better where values stand at chance for ever, and more where rewards are sparse.
"""


@dataclass(frozen=True, slots=True)
class WaitingOrder:
    """How trials are ordered and pooled."""

    worth: Callable[[Judgement], float]
    """Divides the slots, and comes first in the order of waiting trials: more is better."""
    among_equals: Callable[[Judgement], tuple[float, ...]]
    """Orders waiting trials of equal worth: less is better. Then the best value counts."""
    counts_ties: bool = False
    """Whether a judgement records how many trials have its value."""


def _no_difference(judged: Judgement) -> tuple[float, ...]:
    return ()


def _worth_by_p(judged: Judgement) -> float:
    return float(judged["p"])


def _worth_by_rank(judged: Judgement) -> float:
    return rank_confidence(judged["rank"], judged["of"])


def _worth_by_mean_rank(judged: Judgement) -> float:
    if 1 < judged["tied"] == judged["of"]:
        return UNKNOWN
    return rank_confidence(mean_rank(judged), judged["of"])


def mean_rank(judged: Judgement) -> float:
    """The mean of the ranks that equal values share (midrank)."""
    return float(judged["rank"] + (judged["tied"] - 1) / 2)


def _place_at_step(judged: Judgement) -> tuple[float, ...]:
    """The part of the trials at its step that are better, so that values of different steps are never compared. Among
    equals, the trial with more steps comes first.
    """
    return (mean_rank(judged) - 1) / judged["of"], -judged["steps"]


ORDERS = {
    "rank_at_step": WaitingOrder(_worth_by_mean_rank, _place_at_step, counts_ties=True),
    "rank": WaitingOrder(_worth_by_rank, _no_difference),
    "p": WaitingOrder(_worth_by_p, _no_difference),
}


Reason = dict[str, Any]

JUDGED = ("p", "expected_seconds", "steps", "target", "seconds_per_step", "proven", "rank", "tied", "of")
"""The recorded numbers of a trial itself, besides its class and the pools."""
MOST_LOOKED_AT = 12
"""At how many steps ahead P(y_m >= target) is computed: the cost is proportional, and the values are similar."""


class Class(StrEnum):
    """The class of a trial (§2)."""

    PROMISING = "promising"
    OPPORTUNISTIC = "opportunistic"
    POOR = "poor"


@dataclass(slots=True)
class _Trial:
    """A trial that has not ended."""

    steps: int
    """Requested."""
    training: bool = True
    loss: float = math.inf
    """The last one."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """The reason that was recorded."""

    @property
    def is_promising(self) -> bool:
        return self.judged.get("class") == Class.PROMISING


class Pop(Tuner):
    """POP as a fold over the history of its study."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        self._tuner, self._limit, self._started = tuner, tuner.num_trials, 0
        self._max_time = min(tuner.max_time or math.inf, spec.max_time or math.inf)
        self._boundary = boundary_steps(tuner.boundary, tuner.max_steps)
        self._points = requested_steps(self._boundary, spec.eval_every, tuner.max_steps)
        self._next_point = dict(zip(self._points, self._points[1:], strict=False))
        self._targets: list[float] = tuner.targets() or ([] if spec.target is None else [spec.target])
        self._is_given, self._best = bool(self._targets), math.inf
        self._forecasts, self._context = Forecasts(spec, tuner.bounds, tuner.max_steps), Context()
        self._proof = ForecastProof(spec.metric, self._sign, tuner.max_steps)
        self._order = ORDERS[tuner.order_by]
        self._trials: dict[int, _Trial] = {}
        self._unjudged: dict[int, None] = {}  # at a boundary, in order of arrival
        self._between: dict[int, None] = {}  # evaluated between two boundaries, to be extended at once
        self._turns: dict[int, None] = {}  # judged and not training, in order of arrival
        self._pools: tuple[int, Pools] | None = None  # by number of slots; None: outdated

    def set_max_trials(self, trials: int) -> None:
        self._limit = min(self._limit, trials)

    def set_context(self, context: Context) -> None:
        self._context = context

    # ------------------------------------------------------------------------------------------------ what happened

    def observe(self, event: TrialEvent) -> None:
        self._forecasts.observe(event)
        self._proof.observe(event)
        match event.kind:
            case TrialEventKind.START:
                self._started += 1
                self._trials[event.trial] = _Trial(event.steps)
            case TrialEventKind.PROMOTE if event.trial in self._trials:
                self._resume(event.trial, event.steps)
            case TrialEventKind.PRIORITIZE if event.trial in self._trials:
                self._take_judgement(event)
            case TrialEventKind.RESULT:
                self._take_result(event)
            case TrialEventKind.STOP | TrialEventKind.FAIL | TrialEventKind.CANCEL:
                self._end(event.trial)

    def _resume(self, number: int, steps: int) -> None:
        self._trials[number].steps, self._trials[number].training = steps, True
        for waiting in (self._turns, self._between, self._unjudged):
            waiting.pop(number, None)

    def _take_judgement(self, event: TrialEvent) -> None:
        trial = self._trials[event.trial]
        trial.judged, self._pools = event.reason, None
        self._unjudged.pop(event.trial, None)
        if not trial.training:
            self._turns.setdefault(event.trial)

    def _take_result(self, event: TrialEvent) -> None:
        self._best = min(self._best, loss := self.loss(event))
        trial = self._trials.get(event.trial)
        if trial is not None and event.steps == trial.steps:
            trial.training, trial.loss = False, loss
            if event.steps not in self._next_point:
                self._end(event.trial)
            elif event.steps % self._boundary:
                self._between[event.trial] = None
            else:
                self._unjudged[event.trial] = None
        while self._is_given and self._targets and loss <= self._sign * self._targets[0]:
            self._aim_higher()
        if self._is_given and not self._targets:
            self._end(event.trial)

    def _aim_higher(self) -> None:
        """A target is reached: all trials are judged again by the next one."""
        self._targets.pop(0)
        self._unjudged |= {number: None for number, trial in self._trials.items() if trial.judged}
        self._turns.clear()

    def _end(self, number: int) -> None:
        self._trials.pop(number, None)
        self._pools = None
        for waiting in (self._turns, self._between, self._unjudged):
            waiting.pop(number, None)

    # ------------------------------------------------------------------------------------------------ actions

    def suggest(self) -> Next | None:
        if (why := self._is_over()) is not None:
            return self._give_up(why)
        if self._unjudged:
            return self._judge(next(iter(self._unjudged)))
        return self._reclassify() or self._continue_between() or self._next_turn()

    def _is_over(self) -> str | None:
        """Why nothing more is wanted: the last target is reached, or time is up."""
        if self._is_given and not self._targets:
            return "target"
        return "time" if self._seconds_left() <= 0 else None

    def _seconds_left(self) -> float:
        return self._max_time - self._context.elapsed

    def _give_up(self, why: str) -> Stop | None:
        number = next(iter(self._trials), None)
        return None if number is None else Stop(trial=number, reason=self._add_context({"over": why}))

    def _judge(self, number: int) -> Next:
        """The class of a trial at a boundary: kill threshold, then lower bound, then pool (§5.3)."""
        curve = self._forecasts.curve(number)
        value, kill = curve.values[-1], self._tuner.kill_threshold
        if kill is not None and curve.last_step >= self._tuner.min_steps and self._sign * (value - kill) > 0:
            return Stop(
                trial=number, reason=self._add_context({"class": Class.POOR, "value": value, "kill_threshold": kill})
            )
        judged = self._forecast(number) | self._rank_fields(number)
        if self._is_poor(number, judged):
            return Stop(trial=number, reason=self._add_context({"class": Class.POOR, **judged}))
        worth = self._order.worth
        others = [worth(trial.judged) for other, trial in self._trials.items() if trial.judged and other != number]
        judged |= self._claim_fields(number)
        return self._prioritize(number, judged, divide([*others, worth(judged)], self._context.slots))

    def _is_poor(self, number: int, judged: Reason) -> bool:
        """Whether a trial ends: no time is left, or p is proven and too small, and the trial is not at the top."""
        if judged["p"] >= self._tuner.lower_bound:
            return False
        if not self._ahead(number, judged["seconds_per_step"]):
            return True
        if not self._proof.is_given or not self._forecasts.has_shape(number):
            return False
        return not self._forecasts.is_at_top(number, self._tuner.keep_top)

    def _rank_fields(self, number: int) -> Reason:
        """Whether p is proven, and the trial's rank at its step."""
        rank, among = self._forecasts.rank(number)
        ties = {"tied": self._forecasts.ties(number)} if self._order.counts_ties else {}
        return {"proven": self._proof.is_given, "rank": rank, **ties, "of": among}

    def _claim_fields(self, number: int) -> Reason:
        """A claim to be proven later: the probability that the trial will be at the current best value."""
        now, mark, end = self._forecasts.curve(number).last_step, self._sign * self._best, self._points[-1]
        then = min(now - now % self._boundary + self._boundary, end)
        chances = self._forecasts.posterior([number]).prob_reaches([then, end], mark)[0]
        p_next, p_end = (round(float(p), 4) for p in chances)
        return {FORETOLD: {"mark": mark, "next": then, "p_next": p_next, "p_end": p_end}}

    def _forecast(self, number: int) -> Reason:
        """p and the expected remaining time of a trial (eq. 1 to 3, truncated when time is up)."""
        seconds, target = self._context.seconds_per_step(number), self._target()
        steps = self._ahead(number, seconds)
        judged = {"steps": self._forecasts.curve(number).last_step, "target": target, "seconds_per_step": seconds}
        if not steps:
            return {"p": 0.0, "expected_seconds": 0.0, **judged}
        first = self._forecasts.posterior([number]).expected_first_step(target, steps)
        remaining = max(0.0, float(first.expected[0]) - self._forecasts.curve(number).last_step) * seconds
        return {"p": round(float(first.probability[0]), 4), "expected_seconds": round(remaining, 3), **judged}

    def _ahead(self, number: int, seconds: float) -> list[int]:
        """Steps at which a trial may reach the target before time is up: boundaries, or some of them, and the last
        step.
        """
        now = self._forecasts.curve(number).last_step
        ends = [step for step in self._points if step % self._boundary == 0 or step not in self._next_point]
        ahead = [step for step in ends if step > now and (step - now) * seconds <= self._seconds_left()]
        return ahead[::-1][:: 1 + len(ahead) // (MOST_LOOKED_AT + 1)][::-1]

    def _target(self) -> float:
        return self._targets[0] if self._is_given else self._sign * self._best

    def _prioritize(self, number: int, judged: Mapping[str, Any], pools: Pools) -> Prioritize:
        worth = self._order.worth(judged)
        is_promising = worth >= pools.threshold
        reason: Reason = {"class": Class.PROMISING if is_promising else Class.OPPORTUNISTIC, **judged}
        reason |= {"threshold": None if math.isinf(pools.threshold) else pools.threshold, "own_slots": pools.slots}
        return Prioritize(trial=number, priority=worth if is_promising else 0.0, reason=self._add_context(reason))

    def _current_pools(self) -> Pools:
        slots = self._context.slots
        if self._pools is None or self._pools[0] != slots:
            confidences = (self._order.worth(trial.judged) for trial in self._trials.values() if trial.judged)
            self._pools = (slots, divide(confidences, slots))
        return self._pools[1]

    def _reclassify(self) -> Prioritize | None:
        """The first trial whose pool has changed because of other trials."""
        pools = self._current_pools()
        for number, trial in self._trials.items():
            if trial.judged and trial.is_promising != (self._order.worth(trial.judged) >= pools.threshold):
                judged = {name: trial.judged[name] for name in JUDGED if name in trial.judged}
                return self._prioritize(number, judged, pools)
        return None

    def _continue_between(self) -> Extend | None:
        """A trial between two boundaries."""
        number = next(iter(self._between), None)
        return None if number is None else self._extend(number)

    def _next_turn(self) -> Next | None:
        """Promising trials as long as they have slots, then new ones, then opportunistic ones, then any."""
        promising = [number for number in self._turns if self._trials[number].is_promising]
        training = sum(trial.training and trial.is_promising for trial in self._trials.values())
        if promising and training < self._current_pools().slots:
            return self._extend(self._first(promising))
        if self._started < self._limit:
            return NewTrial(steps=self._points[0], reason=self._add_context({}))
        others = [number for number in self._turns if not self._trials[number].is_promising]
        return self._extend(self._first(others or promising)) if self._turns else None

    def _first(self, numbers: list[int]) -> int:
        """The waiting trial that continues first, by the study's `order_by`."""
        return min(numbers, key=self._place)

    def _place(self, number: int) -> tuple[float, ...]:
        trial = self._trials[number]
        return -self._order.worth(trial.judged), *self._order.among_equals(trial.judged), trial.loss, number

    def _extend(self, number: int) -> Extend:
        trial = self._trials[number]
        why = {name: trial.judged[name] for name in ("class", "rank", "tied", "of") if name in trial.judged}
        return Extend(trial=number, steps=self._next_point[trial.steps], reason=self._add_context(why))

    def _add_context(self, reason: Reason) -> Reason:
        """A reason with the context that was used."""
        return {**reason, "elapsed": self._context.elapsed, "slots": self._context.slots}
