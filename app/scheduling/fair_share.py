"""Weighted water-filling (ASHA paper, §5.3) with deficits: the slots due to each study, and how many it lacks.

Priorities are classes: a study of a higher class comes first, whatever its share. Within a class the slots are divided
by weight. A study that can use fewer, or may have no more, leaves the rest to the others, again by weight. A share is
seldom a whole number of slots, so a study's deficit counts for it later, as in deficit round robin, and studies take
turns.

Policies say which outstanding stages a free slot takes. `fair_share`, the default, gives every study its share of the
slots, and no more than it can use; within a study the most urgent path comes first, which with one study is the
critical path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import ceil, inf
from typing import Protocol

from app.domain.accounting import steps_left
from app.domain.search_plan import Study
from app.domain.stage_tree import Place
from app.domain.terms import PlanId, StudyId
from app.scheduling.demands import Urgency
from app.scheduling.frontier import Frontier, Span
from app.scheduling.packs import trials_on_a_slot
from app.scheduling.placement import cut_to_budget

LARGEST_DEFICIT = 2.0
"""In turns on a slot: a study never lacks or owes more, so that a share nobody could give is not owed forever."""

LIGHTEST, HEAVIEST = 1e-300, 1e300
"""Weights beyond these bounds count as the bound, so that sums and quotients stay finite."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A study's request. demand: the slots that it could use now. cap: the most it may have. priority: its class."""

    demand: float
    weight: float = 1.0
    cap: float = inf
    priority: float = 1.0

    @property
    def most(self) -> float:
        return min(self.demand, self.cap)


@dataclass(frozen=True, slots=True)
class FairShare:
    """The shares of the studies that compete for slots; empty if fewer than two do.

    requests: by study. due: slots, not rounded. deficit: the turns on a slot that a study had less than it was due.
    """

    requests: Mapping[StudyId, ShareRequest] = field(default_factory=dict)
    due: Mapping[StudyId, float] = field(default_factory=dict)
    deficit: Mapping[StudyId, float] = field(default_factory=dict)

    def need(self, study: StudyId, used: float) -> float:
        """The slots that a study lacks when it has `used`; negative if it has too many."""
        return self.due.get(study, 0.0) - used + self.deficit.get(study, 0.0)


NO_CONTENTION = FairShare()
"""At most one study wants slots."""


class FairSharing:
    """Keeps the deficits of studies from tick to tick. turn_seconds: the length of a turn on a slot."""

    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._share, self._used, self._at = NO_CONTENTION, Counter[StudyId](), 0.0

    def look(self, requests: Mapping[StudyId, ShareRequest], slots: int, now: float) -> FairShare:
        """The shares of `slots` slots now. now: seconds of a clock that does not go back."""
        deficit = self._deficits(now) if len(requests) > 1 else {}
        self._at = now
        if len(requests) < 2:
            self._share = NO_CONTENTION
        else:
            self._share = FairShare(requests, shares(slots, requests), deficit)
        return self._share

    def settle(self, used: Counter[StudyId]) -> None:
        """The slots have been given away, and stay with their studies until the next look."""
        if self._share.due:
            self._used = used

    def _deficits(self, now: float) -> dict[StudyId, float]:
        """The deficits at `now`. A study that has ceased to compete, or has just begun to, has none."""
        before, turns = self._share, (now - self._at) / self._turn_seconds
        deficit = {
            study: before.deficit.get(study, 0.0) + turns * (due - self._used[study])
            for study, due in before.due.items()
        }
        return {study: max(-LARGEST_DEFICIT, min(LARGEST_DEFICIT, turns)) for study, turns in deficit.items()}


def shares(slots: int, requests: Mapping[StudyId, ShareRequest]) -> dict[StudyId, float]:
    """The slots that are due to each study, not rounded."""
    granted: dict[StudyId, float] = {}
    left = float(slots)
    for priority in sorted({request.priority for request in requests.values()}, reverse=True):
        granted |= _fill(left, {study: request for study, request in requests.items() if request.priority == priority})
        left = slots - sum(granted.values())
    return granted


def _fill(slots: float, requests: Mapping[StudyId, ShareRequest]) -> dict[StudyId, float]:
    """Pour the slots in until each study has all that it can use, or all have as many slots for each unit of weight."""
    weight = {study: min(max(request.weight, LIGHTEST), HEAVIEST) for study, request in requests.items()}
    order = sorted(requests, key=lambda study: (requests[study].most / weight[study], study))
    rest = accumulate(weight[study] for study in reversed(order))  # the weight of each and of those after it
    filled: dict[StudyId, float] = {}
    for study, of in zip(order, reversed(list(rest)), strict=True):
        filled[study] = min(requests[study].most, slots * weight[study] / of)
        slots -= filled[study]
    return filled


def competitors(frontiers: Iterable[Frontier]) -> set[StudyId]:
    """The studies that have a slot, or could use one."""
    studies: set[StudyId] = set()
    for frontier in frontiers:
        studies.update(frontier.studies(), frontier.plan.chains.slots_used)
    return studies


def share_requests(frontiers: Sequence[Frontier], slots: int) -> dict[StudyId, ShareRequest]:
    """What the studies that compete may have of so many slots."""
    running, requests = slots_used(frontiers), dict[StudyId, ShareRequest]()
    for frontier in frontiers:
        for study in [frontier.plan.studies[name] for name in competitors([frontier])]:
            could = (
                sum(1 for _ in islice(frontier.heads(study.id), slots))
                if steps_left(frontier.plan, study) and study.is_running
                else 0
            )
            demand = min(slots, running[study.id] + could * study.least_ranks)
            requests[study.id] = ShareRequest(demand, study.weight, cap_of(study), study.priority)
    return requests


def slots_used(frontiers: Iterable[Frontier]) -> Counter[StudyId]:
    """How many slots train for each study: all of those that a chain has."""
    used = Counter[StudyId]()
    for frontier in frontiers:
        used.update(frontier.plan.chains.slots_used)
    return used


MOST_WANTED = 1000
"""More paths of a study than these are not counted."""


def slots_wanted(frontiers: Iterable[Frontier], tuners_want: Container[StudyId]) -> Counter[str]:
    """How many more slots than they have the studies would keep busy now, by the kind of GPU; "" for any kind.

    tuners_want: the studies whose tuners would have one more trial under way. A path that two studies want is counted
    once, and as many as are trained in a pack are one. Of the kinds that a study names, the first counts.
    """
    total = Counter[str]()
    for frontier in frontiers:
        used, counted = slots_used([frontier]), set[Place]()
        for study in frontier.plan.studies.values():
            if study.is_running:
                heads = [head for head in islice(frontier.heads(study.id), MOST_WANTED) if head not in counted]
                counted.update(heads)
                kinds = Counter(_kind_of(frontier, study, head) for head in heads)
                paths = Counter({kind: ceil(each / trials_on_a_slot(frontier.plan)) for kind, each in kinds.items()})
                paths[next(iter(study.devices), "")] += study.id in tuners_want
                left = cap_of(study) - used[study.id]
                for kind, each in paths.items():
                    total[kind] += (some := int(max(0, min(each * study.least_ranks, left))))
                    left -= some
    return total


def _kind_of(frontier: Frontier, study: Study, head: Place) -> str:
    """The kind of GPU that takes what begins there: of the state's, unless the study names several, or its first."""
    before = "" if len(study.devices) > 1 else frontier.plan.gpu_at(frontier.plan.nodes[head[0]], head[1])
    return before or next(iter(study.devices), "")


def cap_of(study: Study) -> float:
    return inf if study.max_slots is None else study.max_slots


def slot_limits(frontier: Frontier, name: StudyId | None, slots: int, free: int) -> tuple[int, int]:
    """How many of so many slots a study may have, and how many of the free ones now, at least one: it is its turn."""
    assert name is not None  # what is trained is trained for somebody
    study = frontier.plan.studies[name]
    most = slots if study.max_slots is None else min(slots, study.max_slots)
    return most, max(1, min(free, most - slots_used([frontier])[name]))


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
        if running[study.id] + study.least_ranks <= cap_of(study) and steps_left(frontier.plan, study):
            head = frontier.longest(passed_over.get(frontier.id, ()), study.id)
            if head is not None:
                return frontier, cut_to_budget(frontier.plan, [frontier.path(head, study.id)])[0]
    return None


def turn(study: Study, running: int, balance: FairShare) -> Turn:
    """Whose turn it is: of equals, the one that was submitted first.

    Where nothing was reckoned yet, the one that has least for its weight.
    """
    lacks = balance.need(study.id, running) if balance.due else -(running + 1) / study.weight
    return (-study.priority, -lacks, study.submitted_at, study.id)


def critical_path(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The longest remaining path over all trees, as a whole, so that its model stays in memory (TreeML §4.3)."""
    best: tuple[Urgency, Frontier, Place] | None = None
    payer: StudyId | None = None
    for frontier in frontiers:
        for study in _payers(frontier):
            head = frontier.longest(passed_over.get(frontier.id, ()), study)
            if head is not None and (best is None or frontier.urgency(head) > best[0]):
                best, payer = (frontier.urgency(head), frontier, head), study
    return best and (best[1], cut_to_budget(best[1].plan, [best[1].path(best[2], payer)])[0])


def _payers(frontier: Frontier) -> list[StudyId] | list[None]:
    """The studies that may have more steps begun; None for all of them alike, where all may."""
    studies = list(frontier.studies())
    able = [study for study in studies if steps_left(frontier.plan, frontier.plan.studies[study])]
    return [None] if len(able) == len(studies) else able


POLICIES: dict[str, Policy] = {"fair_share": fair_share, "critical_path": critical_path}
