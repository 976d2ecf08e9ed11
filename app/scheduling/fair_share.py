"""The default policy: every study gets its share of the slots, and no more than it can use.

Within a study the most urgent path comes first. With one study, that is the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.ids import StudyId
from app.domain.search_plan import Study
from app.scheduling.balance import EVEN, Balance, cap_of, slots_used
from app.scheduling.frontier import Frontier
from app.scheduling.policy import NOTHING, Choice, PassedOver

Turn = tuple[float, float, float, StudyId]


def fair_share(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: Balance = EVEN
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


def turn(study: Study, running: int, balance: Balance) -> Turn:
    """Whose turn it is: of equals, the one that was submitted first.

    Where nothing was reckoned yet, the one that has least for its weight.
    """
    lacks = balance.need(study.id, running) if balance.due else -(running + 1) / study.weight
    return (-study.priority, -lacks, study.submitted_at, study.id)
