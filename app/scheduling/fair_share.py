"""Weighted water-filling (ASHA paper, §5.3): every study gets its share of the slots, and no more than it can use.

Priorities are classes: a study of a higher one comes first, whatever its share. Within a class the slots are divided by
weight. Who can use less than that, or may have no more, leaves the rest to the others, again by weight. Within a study
the most urgent path comes first. With one study, that is the critical path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, floor, inf

from app.domain.ids import ChainId, StudyId
from app.domain.search_plan import Chain, Study
from app.scheduling.frontier import Frontier
from app.scheduling.policy import NOTHING, Choice, PassedOver


@dataclass(frozen=True, slots=True)
class Claim:
    """What a study may have: slots that it could use by now, its weight, the most it may have, its class."""

    demand: float
    weight: float = 1.0
    cap: float = inf
    priority: float = 1.0


def shares(slots: int, claims: Mapping[StudyId, Claim]) -> dict[StudyId, float]:
    """The slots, whole and broken, that are due to each study."""
    found: dict[StudyId, float] = {}
    left = float(slots)
    for priority in sorted({claim.priority for claim in claims.values()}, reverse=True):
        found |= _fill(left, {study: claim for study, claim in claims.items() if claim.priority == priority})
        left = slots - sum(found.values())
    return found


def _fill(slots: float, claims: Mapping[StudyId, Claim]) -> dict[StudyId, float]:
    """Pour the slots in until each study has what it can take, or all stand level: so many slots for each weight."""
    found: dict[StudyId, float] = {}
    weight = sum(claim.weight for claim in claims.values())
    for study, claim in sorted(claims.items(), key=lambda each: (_most(each[1]) / each[1].weight, each[0])):
        found[study] = min(_most(claim), slots * claim.weight / weight)
        slots, weight = slots - found[study], weight - claim.weight
    return found


def _most(claim: Claim) -> float:
    return min(claim.demand, claim.cap)


def fair_share(frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING) -> Choice | None:
    """The most urgent path of the study that has least for its weight, in the highest class that has anything to do."""
    running = slots_used(frontiers)
    waiting = [(study, frontier) for frontier in frontiers for study in _studies(frontier)]
    for study, frontier in sorted(waiting, key=lambda each: _turn(each[0], running[each[0].id])):
        if running[study.id] < _cap(study):
            head = frontier.longest(passed_over.get(frontier.id, ()), study.id)
            if head is not None:
                return frontier, frontier.path(head, study.id)
    return None


def _turn(study: Study, running: int) -> tuple[float, float, float, StudyId]:
    """Whose turn it is: of equals, the one that was submitted first."""
    return (-_priority(study), (running + 1) / _weight(study), study.submitted_at, study.id)


def slots_used(frontiers: Iterable[Frontier]) -> Counter[StudyId]:
    """How many slots train for each study."""
    return Counter(_payer(chain) for frontier in frontiers for chain in _training(frontier))


def claims(frontiers: Sequence[Frontier], slots: int) -> dict[StudyId, Claim]:
    """What the running studies may have of so many slots."""
    running, found = slots_used(frontiers), dict[StudyId, Claim]()
    for frontier in frontiers:
        for study in [study for study in frontier.plan.studies.values() if study.is_running]:
            could = sum(1 for _ in islice(frontier.heads(study.id), slots))
            demand = min(slots, running[study.id] + could)
            found[study.id] = Claim(demand, _weight(study), _cap(study), _priority(study))
    return found


def preempted(frontiers: Sequence[Frontier], slots: int) -> ChainId | None:
    """The chain that should stop at its next step, keep its state and make room, when no slot is free; or None.

    Only where a study that lacks a whole slot of its share has something to do, and another has a whole slot more than
    its own. So what is taken is never given back at once: after it, neither is on the other side of its share. Of that
    study's chains it is the one that began last.
    """
    running, due = slots_used(frontiers), shares(slots, claims(frontiers, slots))
    if sum(running.values()) < slots or not any(_is_short(frontier, running, due) for frontier in frontiers):
        return None
    over = {study: running[study] - due.get(study, 0.0) for study in running}
    victim = max(over, key=lambda study: (over[study], study))
    if running[victim] - 1 < ceil(due.get(victim, 0.0) - 1e-9):
        return None
    chains = [chain for frontier in frontiers for chain in _training(frontier) if _payer(chain) == victim]
    return max(chains, key=lambda chain: (chain.at, chain.id)).id


def _is_short(frontier: Frontier, running: Counter[StudyId], due: Mapping[StudyId, float]) -> bool:
    """Whether a study with something to do has a whole slot less than its share."""
    return any(running[study.id] + 1 <= floor(due.get(study.id, 0.0) + 1e-9) for study in _studies(frontier))


def _studies(frontier: Frontier) -> list[Study]:
    return [frontier.plan.studies[study] for study in frontier.studies()]


def _training(frontier: Frontier) -> Iterable[Chain]:
    return (chain for chain in frontier.plan.chains.values() if not chain.is_trained)


def _payer(chain: Chain) -> StudyId:
    return chain.stages[chain.index].study


def _priority(study: Study) -> float:
    return float(study.spec.get("priority", 1))


def _weight(study: Study) -> float:
    return float(study.spec.get("weight", 1))


def _cap(study: Study) -> float:
    return float(study.spec.get("max_slots") or inf)
