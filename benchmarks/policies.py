"""The policies that TreeML §6.3 compares with the critical path; the service has no use for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain.stage_tree import Place
from app.scheduling.fair_share import NO_CONTENTION, NOTHING, POLICIES, Choice, FairShare, PassedOver, Policy
from app.scheduling.frontier import Frontier, Span


def breadth_first(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """One stage at a time, those nearest to the root first (BFS)."""
    return _single(
        frontiers, passed_over, lambda frontier, span: (-len(frontier.plan.ancestry(span.node)), -span.start)
    )


def most_children_first(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
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


COMPARED: dict[str, Policy] = {
    **POLICIES,
    "breadth_first": breadth_first,
    "most_children_first": most_children_first,
}
