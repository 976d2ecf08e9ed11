"""By what POP orders and pools trials: the `order_by` of its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.search.tuners.promising import rank_confidence

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
