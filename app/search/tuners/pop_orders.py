"""By what POP orders and pools trials: the `order_by` of its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.search.tuners.promising import rank_confidence

Judgement = Mapping[str, Any]
"""The recorded reason of a trial's last judgement."""

UNKNOWN = 0.5
"""The worth of a trial where all results at its step are equal: they say nothing, so half of the slots go deeper and
half go wider. More of them helps where values stand at chance for ever, fewer where rewards are sparse.
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
    return rank_confidence(_mean_rank(judged), judged["of"])


def _mean_rank(judged: Judgement) -> float:
    """The mean of the ranks that equal values share (midrank)."""
    return float(judged["rank"] + (judged["tied"] - 1) / 2)


def _part_before_and_steps_left(judged: Judgement) -> tuple[float, ...]:
    """The part of the trials at its step that is before it, so that values of different steps are never compared; of
    equal ones, the trial with more steps.
    """
    return (_mean_rank(judged) - 1) / judged["of"], -judged["steps"]


ORDERS = {
    "rank_at_step": WaitingOrder(_worth_by_mean_rank, _part_before_and_steps_left, counts_ties=True),
    "rank": WaitingOrder(_worth_by_rank, _no_difference),
    "p": WaitingOrder(_worth_by_p, _no_difference),
}
