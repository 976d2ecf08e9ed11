"""Which outstanding stages a free slot takes: the three policies that TreeML §6.3 compares, chosen by a setting.

A policy looks at the frontiers of all plans and gives the one to take from, with the spans to run there in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain.stage_tree import Place
from app.scheduling.frontier import Frontier, Span

Choice = tuple[Frontier, list[Span]]
Policy = Callable[[Sequence[Frontier]], Choice | None]


def critical_path(frontiers: Sequence[Frontier]) -> Choice | None:
    """The longest remaining path over all trees, as a whole, so that its model stays in memory (TreeML §4.3)."""
    heads = [(frontier.urgency(head), frontier, head) for frontier in frontiers if (head := frontier.longest())]
    if not heads:
        return None
    _, frontier, head = max(heads, key=lambda found: found[0])
    return frontier, frontier.path(head)


def breadth_first(frontiers: Sequence[Frontier]) -> Choice | None:
    """One stage at a time, those nearest to the root first (BFS)."""
    return _single(frontiers, lambda frontier, span: (-len(frontier.plan.ancestry(span.node)), -span.start))


def most_children_first(frontiers: Sequence[Frontier]) -> Choice | None:
    """One stage at a time, those first after which the most others can begin (THR)."""
    return _single(frontiers, lambda frontier, span: (frontier.children(span), -span.start))


def _single(frontiers: Sequence[Frontier], rank: Callable[[Frontier, Span], tuple[int, ...]]) -> Choice | None:
    """The first stage of the head that ranks highest within the highest priority; ties to the smaller name."""
    found: list[tuple[float, tuple[int, ...], Place, Choice]] = []
    for frontier in frontiers:
        for head in frontier.heads():
            priority, span = frontier.urgency(head)[0], frontier.path(head)[0]
            found.append((priority, rank(frontier, span), head, (frontier, [span])))
    return min(found, key=lambda entry: (-entry[0], [-part for part in entry[1]], entry[2]))[3] if found else None


POLICIES: dict[str, Policy] = {
    "critical_path": critical_path,
    "breadth_first": breadth_first,
    "most_children_first": most_children_first,
}
