"""Weighted water-filling (ASHA paper, §5.3): what each study is due of the slots, and how far it is behind that.

Priorities are classes: a study of a higher one comes first, whatever its share. Within a class the slots are divided by
weight. Who can use less than that, or may have no more, leaves the rest to the others, again by weight. What is due is
seldom a whole number of slots: what a study had too little of counts for it, and so studies take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import inf

from app.domain.ids import StudyId
from app.domain.search_plan import Chain, Study
from app.scheduling.frontier import Frontier

MOST_BEHIND = 2.0
"""A study is never more turns behind or ahead than that: what nobody could give it is not owed for ever."""

LIGHTEST, HEAVIEST = 1e-300, 1e300
"""Weights beyond count as these, so that what is computed with them stays finite."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a study may have: slots that it could use by now, its weight, the most it may have, its class."""

    demand: float
    weight: float = 1.0
    cap: float = inf
    priority: float = 1.0

    @property
    def most(self) -> float:
        return min(self.demand, self.cap)


@dataclass(frozen=True, slots=True)
class Balance:
    """What the studies that compete for slots may have, are due, and are behind, in slots; nothing if only one does.

    behind: by so many turns on a slot it had less than it was due.
    """

    claims: Mapping[StudyId, Claim] = field(default_factory=dict)
    due: Mapping[StudyId, float] = field(default_factory=dict)
    behind: Mapping[StudyId, float] = field(default_factory=dict)

    def need(self, study: StudyId, used: float) -> float:
        """How much a study that has so many slots lacks; negative for what it has too much."""
        return self.due.get(study, 0.0) - used + self.behind.get(study, 0.0)


EVEN = Balance()
"""Nobody competes."""


class Balancing:
    """Keeps how far studies are behind, from look to look. turn_seconds: how long a turn on a slot is."""

    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._balance, self._used, self._at = EVEN, Counter[StudyId](), 0.0

    def look(self, frontiers: Sequence[Frontier], slots: int, now: float) -> Balance:
        """How things stand now, with so many slots; `now` in seconds of any clock that does not go back."""
        competing = competitors(frontiers)
        behind = self._behind(now) if len(competing) > 1 else {}
        self._at = now
        if len(competing) < 2:
            self._balance = EVEN
        else:
            found = claims(frontiers, slots)
            self._balance = Balance(found, shares(slots, found), behind)
        return self._balance

    def settle(self, frontiers: Sequence[Frontier]) -> None:
        """The slots have been given away: so it stays until the next look."""
        if self._balance.due:
            self._used = slots_used(frontiers)

    def _behind(self, now: float) -> dict[StudyId, float]:
        """A study that does not compete any more, or has begun to, is neither behind nor ahead."""
        before, turns = self._balance, (now - self._at) / self._turn_seconds
        behind = {
            study: before.behind.get(study, 0.0) + turns * (due - self._used[study])
            for study, due in before.due.items()
        }
        return {study: max(-MOST_BEHIND, min(MOST_BEHIND, turns)) for study, turns in behind.items()}


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
    weight = {study: min(max(claim.weight, LIGHTEST), HEAVIEST) for study, claim in claims.items()}
    order = sorted(claims, key=lambda study: (claims[study].most / weight[study], study))
    rest = accumulate(weight[study] for study in reversed(order))  # the weight of each and of those after it
    found: dict[StudyId, float] = {}
    for study, of in zip(order, reversed(list(rest)), strict=True):
        found[study] = min(claims[study].most, slots * weight[study] / of)
        slots -= found[study]
    return found


def competitors(frontiers: Iterable[Frontier]) -> set[StudyId]:
    """The studies that have a slot, or could use one."""
    found: set[StudyId] = set()
    for frontier in frontiers:
        found.update(frontier.studies(), (payer(chain) for chain in training(frontier)))
    return found


def claims(frontiers: Sequence[Frontier], slots: int) -> dict[StudyId, Claim]:
    """What the studies that compete may have of so many slots."""
    running, found = slots_used(frontiers), dict[StudyId, Claim]()
    for frontier in frontiers:
        for study in [frontier.plan.studies[name] for name in competitors([frontier])]:
            could = sum(1 for _ in islice(frontier.heads(study.id), slots)) if study.is_running else 0
            demand = min(slots, running[study.id] + could)
            found[study.id] = Claim(demand, study.weight, cap_of(study), study.priority)
    return found


def slots_used(frontiers: Iterable[Frontier]) -> Counter[StudyId]:
    """How many slots train for each study."""
    return Counter(payer(chain) for frontier in frontiers for chain in training(frontier))


def training(frontier: Frontier) -> Iterable[Chain]:
    """The chains that have a slot; of those that it trains together, the one that leads."""
    by_slot: dict[str, Chain] = {}
    for chain in frontier.plan.chains.values():
        if not chain.is_trained:
            by_slot.setdefault(chain.slot, chain)
    return by_slot.values()


def payer(chain: Chain) -> StudyId:
    """The study that is charged for the stage under way."""
    return chain.stages[min(chain.index, len(chain.stages) - 1)].study


def cap_of(study: Study) -> float:
    return inf if study.max_slots is None else study.max_slots


def allowed(frontier: Frontier, name: StudyId | None, slots: int, free: int) -> tuple[int, int]:
    """How many of so many slots a study may have, and how many of the free ones now, at least one: it is its turn."""
    assert name is not None  # what is trained is trained for somebody
    study = frontier.plan.studies[name]
    most = slots if study.max_slots is None else min(slots, study.max_slots)
    return most, max(1, min(free, most - slots_used([frontier])[name]))
