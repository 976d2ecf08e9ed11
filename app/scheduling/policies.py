"""Policies: which outstanding stages a free slot takes, by a setting.

`fair_share`, the default, gives every study its share of the slots, and no more than it can use; within a study the
most urgent path comes first, which with one study is the critical path.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from app.domain.ids import PlanId, StudyId
from app.domain.search_plan import Study
from app.domain.stage_tree import Place
from app.scheduling.demands import Urgency
from app.scheduling.fair_share import NO_CONTENTION, FairShare, cap_of, slots_used
from app.scheduling.frontier import Frontier, Span

Choice = tuple[Frontier, list[Span]]
"""Which frontier to take from, and the spans to run there in a row."""

PassedOver = Mapping[PlanId, Container[Place]]
"""By plan, the heads that are not to be chosen, since no slot can take them now: as if they were not there."""

NOTHING: PassedOver = {}


class Policy(Protocol):
    """balance: what is due to each study, for a policy that goes by that."""

    def __call__(
        self, frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
    ) -> Choice | None: ...


Turn = tuple[float, float, float, StudyId]


def fair_share(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The most urgent path of the study that lacks most of its share, in the highest class that has anything to do."""
    running = slots_used(frontiers)
    waiting = [(frontier.plan.studies[study], frontier) for frontier in frontiers for study in frontier.studies()]
    for study, frontier in sorted(waiting, key=lambda each: turn(each[0], running[each[0].id], balance)):
        if running[study.id] < cap_of(study):
            head = frontier.longest(passed_over.get(frontier.id, ()), study.id)
            if head is not None:
                return frontier, frontier.path(head, study.id)
    return None


def turn(study: Study, running: int, balance: FairShare) -> Turn:
    """Whose turn it is: of equals, the one that was submitted first.

    Where nothing was reckoned yet, the one that has least for its weight.
    """
    lacks = balance.need(study.id, running) if balance.due else -(running + 1) / study.weight
    return (-study.priority, -lacks, study.submitted_at, study.id)


__all__ = ["NOTHING", "POLICIES", "Choice", "PassedOver", "Policy"]


def critical_path(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The longest remaining path over all trees, as a whole, so that its model stays in memory (TreeML §4.3)."""
    best: tuple[Urgency, Frontier, Place] | None = None
    for frontier in frontiers:
        head = frontier.longest(passed_over.get(frontier.id, ()))
        if head is not None and (best is None or frontier.urgency(head) > best[0]):
            best = (frontier.urgency(head), frontier, head)
    return best and (best[1], best[1].path(best[2]))


POLICIES: dict[str, Policy] = {"fair_share": fair_share, "critical_path": critical_path}
