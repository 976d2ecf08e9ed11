"""Which outstanding stages a free slot takes, chosen by a setting: fair shares, or what TreeML §6.3 compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain.stage_tree import Place
from app.scheduling.balance import EVEN, Balance
from app.scheduling.fair_share import fair_share
from app.scheduling.frontier import Frontier, Span
from app.scheduling.policy import NOTHING, Choice, PassedOver, Policy
from app.scheduling.ranking import Urgency

__all__ = ["NOTHING", "POLICIES", "Choice", "PassedOver", "Policy"]


def critical_path(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: Balance = EVEN
) -> Choice | None:
    """The longest remaining path over all trees, as a whole, so that its model stays in memory (TreeML §4.3)."""
    best: tuple[Urgency, Frontier, Place] | None = None
    for frontier in frontiers:
        head = frontier.longest(passed_over.get(frontier.id, ()))
        if head is not None and (best is None or frontier.urgency(head) > best[0]):
            best = (frontier.urgency(head), frontier, head)
    return best and (best[1], best[1].path(best[2]))


def breadth_first(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: Balance = EVEN
) -> Choice | None:
    """One stage at a time, those nearest to the root first (BFS)."""
    return _single(
        frontiers, passed_over, lambda frontier, span: (-len(frontier.plan.ancestry(span.node)), -span.start)
    )


def most_children_first(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: Balance = EVEN
) -> Choice | None:
    """One stage at a time, those first after which the most others can begin (THR)."""
    return _single(frontiers, passed_over, lambda frontier, span: (*frontier.children([span]), -span.start))


def _single(
    frontiers: Sequence[Frontier], passed_over: PassedOver, rank: Callable[[Frontier, Span], tuple[int, ...]]
) -> Choice | None:
    """The first stage of the head that ranks highest within the highest priority; ties to the smaller name."""
    ranked: list[tuple[float, tuple[int, ...], Place, Choice]] = []
    for frontier in frontiers:
        for head in frontier.heads():
            if head not in passed_over.get(frontier.id, ()):
                priority, span = frontier.urgency(head)[0], frontier.path(head)[0]
                ranked.append((priority, rank(frontier, span), head, (frontier, [span])))
    return min(ranked, key=lambda entry: (-entry[0], [-part for part in entry[1]], entry[2]))[3] if ranked else None


POLICIES: dict[str, Policy] = {
    "fair_share": fair_share,
    "critical_path": critical_path,
    "breadth_first": breadth_first,
    "most_children_first": most_children_first,
}
