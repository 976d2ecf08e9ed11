"""Weighted water-filling (ASHA paper, §5.3) with deficits: the slots due to each study, and how many it lacks.

Priorities are classes: a study of a higher class always comes first. Within a class, slots are divided by weight. A
study that can use fewer, or has reached its limit, leaves the rest to the others, again by weight. Shares are rarely
whole numbers, so a study's deficit counts for it later, as in deficit round robin, and studies take turns.

A policy chooses the outstanding stages for a free slot. `fair_share`, the default, gives every study its share of the
slots, but no more than it can use. Within a study the most urgent path comes first; with one study, that is the
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
"""In turns on a slot. The limit keeps a share that no slot could serve from being owed forever."""

LIGHTEST, HEAVIEST = 1e-300, 1e300
"""Weights are limited to this range so that sums and quotients stay finite."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A study's request. demand: the slots that it could use now. cap: its limit. priority: its class."""

    demand: float
    weight: float = 1.0
    cap: float = inf
    priority: float = 1.0

    @property
    def most(self) -> float:
        return min(self.demand, self.cap)


@dataclass(frozen=True, slots=True)
class FairShare:
    """The shares of the studies that compete for slots; empty for fewer than two.

    requests: by study. due: slots, not rounded. deficit: the turns on a slot that the study has missed.
    """

    requests: Mapping[StudyId, ShareRequest] = field(default_factory=dict)
    due: Mapping[StudyId, float] = field(default_factory=dict)
    deficit: Mapping[StudyId, float] = field(default_factory=dict)

    def need(self, study: StudyId, used: float) -> float:
        """The slots that a study lacks when it has `used`; negative if it has too many."""
        return self.due.get(study, 0.0) - used + self.deficit.get(study, 0.0)


NO_CONTENTION = FairShare()
"""The share if at most one study wants slots."""


class FairSharing:
    """Keeps the deficits of studies from tick to tick. turn_seconds: the length of a turn on a slot."""

    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._share, self._used, self._at = NO_CONTENTION, Counter[StudyId](), 0.0

    def update(self, requests: Mapping[StudyId, ShareRequest], slots: int, now: float) -> FairShare:
        """The shares of `slots` slots now. now: seconds of a monotonic clock."""
        deficit = self._deficits(now) if len(requests) > 1 else {}
        self._at = now
        if len(requests) < 2:
            self._share = NO_CONTENTION
        else:
            self._share = FairShare(requests, shares(slots, requests), deficit)
        return self._share

    def record_use(self, used: Counter[StudyId]) -> None:
        """Record the slots of each study until the next update."""
        if self._share.due:
            self._used = used

    def _deficits(self, now: float) -> dict[StudyId, float]:
        """The deficits at `now`. A study that no longer competes, or has just begun to, has none."""
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
    """Water-filling: each study gets all it can use, or the same number of slots per unit of weight as the others."""
    weight = {study: min(max(request.weight, LIGHTEST), HEAVIEST) for study, request in requests.items()}
    order = sorted(requests, key=lambda study: (requests[study].most / weight[study], study))
    rest = accumulate(weight[study] for study in reversed(order))  # the weight of each study and all after it
    filled: dict[StudyId, float] = {}
    for study, total in zip(order, reversed(list(rest)), strict=True):
        filled[study] = min(requests[study].most, slots * weight[study] / total)
        slots -= filled[study]
    return filled


def competitors(frontiers: Iterable[Frontier]) -> set[StudyId]:
    """The studies that have a slot, or could use one."""
    studies: set[StudyId] = set()
    for frontier in frontiers:
        studies.update(frontier.studies(), frontier.plan.chains.slots_used)
    return studies


def share_requests(frontiers: Sequence[Frontier], slots: int) -> dict[StudyId, ShareRequest]:
    """The requests of the competing studies for `slots` slots."""
    running, requests = slots_used(frontiers), dict[StudyId, ShareRequest]()
    for frontier in frontiers:
        for study in [frontier.plan.studies[name] for name in competitors([frontier])]:
            could = (
                sum(1 for _ in islice(frontier.heads(study.id), slots))
                if steps_left(frontier.plan, study) and study.is_running
                else 0
            )
            demand = min(slots, running[study.id] + could * study.spec.least_ranks)
            requests[study.id] = ShareRequest(demand, study.spec.weight, cap_of(study), study.spec.priority)
    return requests


def slots_used(frontiers: Iterable[Frontier]) -> Counter[StudyId]:
    """The number of slots that train for each study, all ranks included."""
    used = Counter[StudyId]()
    for frontier in frontiers:
        used.update(frontier.plan.chains.slots_used)
    return used


MOST_WANTED = 1000
"""Most paths of a study that are counted."""


def slots_wanted(frontiers: Iterable[Frontier], tuners_want: Container[StudyId]) -> Counter[str]:
    """How many more slots the studies could keep busy now, by the kind of GPU; "" for any kind.

    tuners_want: the studies whose tuners would start one more trial. A path of two studies is counted once, and a full
    pack counts as one path. If a study names several kinds, the first one counts.
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
                paths[next(iter(study.spec.devices), "")] += study.id in tuners_want
                left = cap_of(study) - used[study.id]
                for kind, each in paths.items():
                    total[kind] += (some := int(max(0, min(each * study.spec.least_ranks, left))))
                    left -= some
    return total


def _kind_of(frontier: Frontier, study: Study, head: Place) -> str:
    """The kind of GPU for a head: that of its state, unless the study names several kinds; else the first named."""
    before = "" if len(study.spec.devices) > 1 else frontier.plan.gpu_at(frontier.plan.nodes[head[0]], head[1])
    return before or next(iter(study.spec.devices), "")


def cap_of(study: Study) -> float:
    return inf if study.spec.max_slots is None else study.spec.max_slots


def slot_limits(frontier: Frontier, name: StudyId | None, slots: int, free: int) -> tuple[int, int]:
    """The most of `slots` slots that a study may have, and of the `free` ones now: at least one, as it is its turn."""
    assert name is not None  # every path is trained for a study
    study = frontier.plan.studies[name]
    most = slots if study.spec.max_slots is None else min(slots, study.spec.max_slots)
    return most, max(1, min(free, most - slots_used([frontier])[name]))


Choice = tuple[Frontier, list[Span]]
"""The chosen frontier, and the spans to run in a row."""

PassedOver = Mapping[PlanId, Container[Place]]
"""By plan, the heads to ignore because no slot can take them now."""

NOTHING: PassedOver = {}


class Policy(Protocol):
    """balance: the shares of the studies, for a policy that uses them."""

    def __call__(
        self, frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
    ) -> Choice | None: ...


Turn = tuple[float, float, float, StudyId]


def fair_share(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The most urgent path of the study that lacks most of its share, in the highest class with outstanding work."""
    running = slots_used(frontiers)
    waiting = [(frontier.plan.studies[study], frontier) for frontier in frontiers for study in frontier.studies()]
    for study, frontier in sorted(waiting, key=lambda each: turn(each[0], running[each[0].id], balance)):
        if running[study.id] + study.spec.least_ranks <= cap_of(study) and steps_left(frontier.plan, study):
            head = frontier.most_urgent_head(passed_over.get(frontier.id, ()), study.id)
            if head is not None:
                return frontier, cut_to_budget(frontier.plan, [frontier.path(head, study.id)])[0]
    return None


def turn(study: Study, running: int, balance: FairShare) -> Turn:
    """The sort key of a study: class, then lack, then time of submission.

    Without computed shares, the study with the fewest slots for its weight comes first.
    """
    lacks = balance.need(study.id, running) if balance.due else -(running + 1) / study.spec.weight
    return (-study.spec.priority, -lacks, study.submitted_at, study.id)


def critical_path(
    frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The longest remaining path of all trees, run as a whole so that its model stays in memory (TreeML §4.3)."""
    best: tuple[Urgency, Frontier, Place] | None = None
    payer: StudyId | None = None
    for frontier in frontiers:
        for study in _payers(frontier):
            head = frontier.most_urgent_head(passed_over.get(frontier.id, ()), study)
            if head is not None and (best is None or frontier.urgency(head) > best[0]):
                best, payer = (frontier.urgency(head), frontier, head), study
    return best and (best[1], cut_to_budget(best[1].plan, [best[1].path(best[2], payer)])[0])


def _payers(frontier: Frontier) -> list[StudyId] | list[None]:
    """The studies with budget left; [None] if all have."""
    studies = list(frontier.studies())
    able = [study for study in studies if steps_left(frontier.plan, frontier.plan.studies[study])]
    return [None] if len(able) == len(studies) else able


POLICIES: dict[str, Policy] = {"fair_share": fair_share, "critical_path": critical_path}
