"""Which trials POP counts as promising, and how many slots they have for themselves (HyperDrive, §3.2).

p, the probability that a trial reaches the target, divides the slots only while it is proven: while earlier forecasts
of this study came true as often as predicted. Otherwise the rank of a trial replaces p.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, inf
from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind

ENOUGH_NEXT = 20
"""This many claims about the next boundary must be settled."""
ENOUGH_ENDED = 20
"""This many trials with a claim about their end must have reached it."""
NEAR = 0.001
"""The tolerance for the latest claims. When nothing comes true any more, the verdict is never wrong, and claims of one
in a thousand are as good.
"""

FORETOLD = "foretold"
"""The key of a claim in the reason of a judgement. `mark` is a value of the metric, `next` a step, and `p_next` and
`p_end` are the probabilities that the trial is at the mark at that step, and at its end.
"""


@dataclass(slots=True)
class Score:
    """The Brier scores of settled claims, of the last value's verdicts on them, and of their base rate."""

    number: int = 0
    hits: int = 0
    _claimed: float = 0.0
    _verdicts: int = 0

    def add(self, p: float, is_there: bool, came: bool) -> None:
        """Add a claim: its p, whether the last value was at the mark when it was made, and whether the later one
        was.
        """
        self.number += 1
        self.hits += came
        self._claimed += (p - came) ** 2
        self._verdicts += is_there != came

    @classmethod
    def from_claim(cls, p: float, is_there: bool, came: bool) -> Score:
        score = cls()
        score.add(p, is_there, came)
        return score

    @classmethod
    def sum(cls, scores: Iterable[Score]) -> Score:
        """The score of all their claims."""
        total = cls()
        for score in scores:
            total.number, total.hits = total.number + score.number, total.hits + score.hits
            total._claimed, total._verdicts = total._claimed + score._claimed, total._verdicts + score._verdicts
        return total

    @property
    def claims_score(self) -> float:
        return self._claimed / self.number if self.number else inf

    @property
    def verdicts_score(self) -> float:
        return self._verdicts / self.number if self.number else inf

    @property
    def base_rate_score(self) -> float:
        """The score of predicting the share that came true, which is a figure in hindsight."""
        rate = self.hits / self.number if self.number else 0.0
        return rate * (1 - rate)

    @property
    def is_no_worse(self) -> bool:
        """Whether the claims score no worse than the verdicts and the base rate."""
        return self.claims_score <= min(self.verdicts_score, self.base_rate_score)

    @property
    def is_near(self) -> bool:
        """The same, with a tolerance."""
        return self.claims_score <= min(self.verdicts_score, self.base_rate_score) + NEAR


class ForecastProof:
    """A fold over a study's history that decides whether p is proven by earlier claims.

    Each judgement claims, with a probability each, that the trial will be at the current best value (a) at its next
    boundary and (b) at its end. A claim is settled when the trial is evaluated there. p is *proven* while

    1. at least 20 claims of (a) are settled, and claims (b) of at least 20 trials,
    2. the Brier score of either kind is no worse than that of the last value's own verdict (it is at the mark, or
       not) and that of the base rate (the share that came true, known only afterwards),
    3. and so, to a thousandth, are the scores of the latest of them: 20 of (a), and the claims (b) of 20 trials.

    (a) covers every trial that continues, however it was chosen, and so reveals a bias towards large gains. (b) has the
    range of p itself, but only trials that went far. The best value is often exceeded early in a study and seldom late,
    so claims about early marks may be right while later ones are wrong.

    sign: -1 if more of the metric is better, else 1.
    """

    def __init__(self, metric: str, sign: float, end: int) -> None:
        self._metric, self._sign, self._end = metric, sign, end
        self.next, self.at_end, self.ended = Score(), Score(), 0
        self._late_next = deque[Score](maxlen=ENOUGH_NEXT)  # of each claim
        self._late_at_end = deque[Score](maxlen=ENOUGH_ENDED)  # of each trial
        self._last: dict[int, float] = {}
        self._claims: dict[int, list[tuple[Mapping[str, Any], bool]]] = {}

    @property
    def is_given(self) -> bool:
        """Whether p is proven now."""
        if self.next.number < ENOUGH_NEXT or self.ended < ENOUGH_ENDED:
            return False
        if not (self.next.is_no_worse and self.at_end.is_no_worse):
            return False
        return all(Score.sum(scores).is_near for scores in (self._late_next, self._late_at_end))

    def observe(self, event: TrialEvent) -> None:
        """Take in an event of the study's history."""
        if event.kind == TrialEventKind.PRIORITIZE and FORETOLD in event.reason:
            self._claim(event.trial, event.reason[FORETOLD])
        elif event.kind == TrialEventKind.RESULT and (value := event.metrics.get(self._metric)) is not None:
            self._settle(event.trial, event.steps, value)
            self._last[event.trial] = value
        elif event.kind in (TrialEventKind.STOP, TrialEventKind.FAIL, TrialEventKind.CANCEL):
            self._claims.pop(event.trial, None)

    def _claim(self, trial: int, claim: Mapping[str, Any]) -> None:
        if trial in self._last:
            self._claims.setdefault(trial, []).append((claim, self._is_at(self._last[trial], claim)))

    def _settle(self, trial: int, step: int, value: float) -> None:
        claims, ends = self._claims.get(trial, []), Score()
        for claim, is_there in claims:
            came = self._is_at(value, claim)
            if claim["next"] == step:
                self._late_next.append(Score.from_claim(claim["p_next"], is_there, came))
                self.next.add(claim["p_next"], is_there, came)
            if step == self._end:
                ends.add(claim["p_end"], is_there, came)
                self.at_end.add(claim["p_end"], is_there, came)
        if step == self._end and claims:
            self.ended += 1
            self._late_at_end.append(ends)
            del self._claims[trial]

    def _is_at(self, value: float, claim: Mapping[str, Any]) -> bool:
        return bool(self._sign * value <= self._sign * claim["mark"])


@dataclass(frozen=True, slots=True)
class Pools:
    """The division of slots."""

    threshold: float
    """Trials with at least this p are promising."""
    effective: float
    """S_effective at the threshold."""
    slots: int
    """For promising trials only: S_effective as a whole number."""


NO_POOLS = Pools(inf, 0.0, 0)


def divide(confidences: Iterable[float], slots: int) -> Pools:
    """The threshold that gives promising trials the most slots that they both desire and deserve.

    confidences: p of all trials that continue. S_desired(p) is the number of trials with at least p, with a slot each
    (k = 1); S_deserved(p) = S p; S_effective(p) is the lesser. Between two values of p only S_deserved changes, and
    grows, so the maximum is at one of them. Of equal ones the highest threshold counts. Half slots, which the paper
    leaves open, are rounded up; if no slot is left for them, no trial is promising.
    """
    ranked = sorted(confidences, reverse=True)
    best, threshold = 0.0, inf
    for number, p in enumerate(ranked, start=1):
        effective = min(float(number), slots * p)
        if effective > best:
            best, threshold = effective, p
    own = floor(best + 0.5)
    return Pools(threshold, best, own) if own else NO_POOLS


BEST_PART = 0.1
"""Beyond the best tenth at its step, a trial's rank counts as zero."""


def rank_confidence(rank: float, number: int) -> float:
    """A replacement of p while it is not proven, from a trial's rank (from 1) among `number` trials at its step.

    It falls from 1, for the best, to 0 beyond the best tenth.
    """
    return round(max(0.0, 1 - (rank - 1) / number / BEST_PART), 4)
