"""How many slots train a path together, and which ones: the opposite of packing, for more slots than paths.

A *gang* is a set of free slots of one kind of device, on one machine if it has enough. Sharded batches give the same
bits for any number of slots, so the number is chosen anew for each stage. If fewer paths are ready than slots are free,
the most urgent path gets the largest power of two that pays, and the others get one slot each.

A path that needs more slots than are free waits with a *reservation*: the slots that are free soonest are held for it
until their current stages end, and meanwhile take only work that ends before that. There is one reservation at a time
and a gang is assigned as a whole, so no two gangs can wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from app.domain.chain_assignment import ResumePoint
from app.domain.events import RanksProfiled
from app.domain.search_plan import SearchPlan, Study, speedup
from app.domain.slots import SlotDescription, gpu_of, multi_machine_kind, shared_gpu, site
from app.domain.stage_tree import Place
from app.domain.terms import LAUNCHED, ChainId, PlanId, StudyId, VerificationKind
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import Candidates, group_by_kind, has_trainer, leaders
from app.scheduling.widths import batch_of

PAYS = 0.6
"""Ranks are worth their slots if their speed-up is at least this share of their number."""

Kind = tuple[str, str]
"""A machine, or "" for all machines that can reach each other, and a kind of device."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The slot of a chain, and the slots lent to it."""

    leader: SlotDescription
    members: tuple[SlotDescription, ...] = ()
    has_several_machines: bool = False
    """Whether each worker starts a rank of its own, because the leader's does not see all the devices."""

    @property
    def kind(self) -> str:
        """The kind under which its speed is recorded."""
        return multi_machine_kind(self.leader.kind) if self.has_several_machines else self.leader.kind

    @property
    def names(self) -> frozenset[str]:
        return frozenset(slot.name for slot in (self.leader, *self.members))

    def assignment_fields(self, new_secret: Callable[[], str]) -> dict[str, Any]:
        """The fields of an assignment that name the members and their meeting point."""
        meeting = {"address": self.leader.address, "secret": new_secret()} if self.has_several_machines else None
        return {"members": tuple(slot.name for slot in self.members), "meeting": meeting}


@dataclass(frozen=True, slots=True)
class GangPath:
    """The slots for a path, or for its first part. measures: they only measure how many of them pay off.

    most: the number of slots that the path could get if these have too little memory.
    """

    frontier: Frontier
    gang: Gang
    spans: Sequence[Span]
    measures: bool = False
    most: int = 1


def can_have_gangs(plan: SearchPlan, span: Span) -> bool:
    """Whether several slots may train a path that begins with a span."""
    return span.study is not None and plan.studies[span.study].spec.most_ranks > 1


def is_moldable(plan: SearchPlan, span: Span) -> bool:
    """Whether the scheduler chooses the number of slots. Isolated trials get as few as allowed."""
    if span.study is None:
        return False
    study = plan.studies[span.study]
    return study.spec.least_ranks < study.spec.most_ranks and not plan.nodes[span.node].is_isolated


def is_being_checked(plan: SearchPlan) -> bool:
    """Whether a slot is checking the plan's trainer."""
    return any(chain.proof == VerificationKind.CHECK for chain in plan.chains.values())


def paths_ready(frontiers: Iterable[Frontier], most: int) -> int:
    """How many paths could begin now, counted up to `most`."""
    heads = (head for frontier in frontiers for head in frontier.heads())
    return sum(1 for _ in islice(heads, most))


def least_ranks(plan: SearchPlan, spans: Sequence[Span], kind: str) -> int:
    """The fewest slots of a kind for a path, by the study file and by the memory that its batches need."""
    study = plan.studies[paying_study(spans)]
    needed = max(plan.ranks_needed(kind, batch_of(plan.nodes[span.node])) for span in spans) if plan.needs else 1
    return min(study.spec.most_ranks, max(study.spec.least_ranks, needed))


def paying_study(spans: Sequence[Span]) -> StudyId:
    """The study that a path was chosen for."""
    study = spans[0].study
    assert study is not None  # every path is trained for a study
    return study


def largest_gang(plan: SearchPlan, spans: Sequence[Span], kind: str, healthy: Iterable[SlotDescription]) -> int:
    """Most slots of a kind that a path could ever have on one machine."""
    groups = groups_of(plan, [slot for slot in healthy if slot.kind == kind]).values()
    largest = max(map(len, groups), default=1)
    return min(plan.studies[paying_study(spans)].spec.most_ranks, 1 << (largest.bit_length() - 1))


def room_for(study: Study, spare: int, group: int, used: int, least: int) -> int:
    """Most slots that one path of a study can have.

    spare: slots left if every other path gets one. group: the free slots of one machine and kind. used: slots of the
    study. least: the fewest allowed.
    """
    cap = study.spec.max_slots or inf
    most = int(max(1, min(study.spec.most_ranks, spare, group, cap - used)))
    return max(least, 1 << (most.bit_length() - 1))


def worthwhile_ranks(profile: RanksProfiled | None, least: int, most: int) -> int:
    """Most ranks, up to `most`, that are worth their slots according to the measurement; else `least`."""
    measured = {} if profile is None else profile.step_seconds
    paying = (ranks for ranks in powers(least, most) if str(ranks) in measured and is_worthwhile(measured, ranks))
    return max(paying, default=least)


def is_worthwhile(step_seconds: Mapping[str, float], ranks: int) -> bool:
    return speedup(step_seconds, ranks) >= PAYS * ranks


def is_measured(profile: RanksProfiled | None, most: int) -> bool:
    """Whether the measurement shows which ranks up to `most` pay off. If some number does not, larger ones do not."""
    if profile is None or profile.refusal:
        return profile is not None
    widest = max(map(int, profile.step_seconds))
    return widest >= most or not is_worthwhile(profile.step_seconds, widest)


def powers(least: int, most: int) -> Iterator[int]:
    """`least` and its doublings up to `most`."""
    while least <= most:
        yield least
        least *= 2


def groups_of(plan: SearchPlan, slots: Iterable[SlotDescription]) -> dict[Kind, list[SlotDescription]]:
    """The slots that may train the plan together, on each machine and then on several that reach each other.

    Shares of a GPU and unknown devices train alone. A script's launcher starts processes on one machine only.
    """
    assert plan.opened is not None
    groups = defaultdict[Kind, list[SlotDescription]](list)
    able = [slot for slot in slots if slot.kind and not shared_gpu(slot.name) and has_trainer(slot, plan.opened)]
    for slot in able:
        groups[f"{slot.host} {site(slot.name)}", slot.kind].append(slot)
    machines = list(groups)
    for kind in {slot.kind for slot in able if slot.address and not plan.opened.parallel.startswith(LAUNCHED)}:
        reached = [slot for slot in able if slot.kind == kind and slot.address]
        if not any(len(groups[machine]) >= len(reached) for machine in machines if machine[1] == kind):
            groups["", kind] = reached
    return groups


Count = Callable[[str], int]
"""The number of slots of a kind that a path must have."""


def gather(
    plan: SearchPlan, id: PlanId, spans: Sequence[Span], resume: ResumePoint | None, slots: Candidates, count: Count
) -> Gang | None:
    """The free slots that take these spans together; None if there are too few.

    A machine with the model in memory comes first, then the one with the fewest free slots left. Slots of several
    machines are taken if no machine has enough. Earlier failures only decide which slot leads, since they are recorded
    for the leader.
    """
    best: tuple[tuple[bool, bool, int], Gang] | None = None
    model = resume and {"plan": id, "node": resume.node, "step": resume.step}
    able = {slot.name for slot in leaders(plan, spans, slots)}
    for (machine, kind), group in groups_of(plan, slots.free).items():
        leading, ranks = [slot for slot in group if slot.name in able], count(kind)
        if len(group) < ranks or not leading:
            continue
        leader = next((slot for slot in leading if model and slot.resident_model == model), leading[0])
        rest = [slot for slot in group if slot is not leader]
        order = (not machine, model is None or leader.resident_model != model, len(group))
        if best is None or order < best[0]:
            best = order, Gang(leader, tuple(rest[: ranks - 1]), has_several_machines=not machine)
    return best and best[1]


def verification_gang(plan: SearchPlan, ranks: int, slots: Sequence[SlotDescription]) -> Gang | None:
    """The slots, all of one kind, that run a verification together, on one machine if it has enough."""
    if ranks == 1:
        return Gang(slots[0]) if slots else None
    groups = [(not machine, len(group), group) for (machine, _), group in groups_of(plan, slots).items()]
    fitting = [each for each in groups if each[1] >= ranks]
    if not fitting:
        return None
    has_several_machines, _, group = min(fitting, key=lambda each: each[:2])
    return Gang(group[0], tuple(group[1:ranks]), has_several_machines)


def verification_kinds(plan: SearchPlan, ranks: int, healthy: Sequence[SlotDescription]) -> list[str]:
    """The kinds of device with enough slots for a verification with `ranks` ranks."""
    kinds = group_by_kind(plan, Candidates(healthy, healthy))
    return [kind for kind, able in kinds if verification_gang(plan, ranks, able.healthy) is not None]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are held for a gang. head: the start of its path. study: the one it was chosen for.

    until: the time when all should be free. stages: the index of each chain's stage at the time of the reservation.
    verifies_on: the kind of device for a verification; "" for training.
    """

    plan: PlanId
    head: Place
    study: StudyId
    slots: frozenset[str]
    until: float
    stages: Mapping[ChainId, int]
    verifies_on: str = ""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A chain on a slot. index: its current stage. seconds: how long that will take."""

    chain: ChainId
    index: int
    seconds: float


def occupants(frontiers: Iterable[Frontier]) -> dict[str, Occupant]:
    """The chains on busy slots, by slot."""
    by_slot: dict[str, Occupant] = {}
    for frontier in frontiers:
        for chain in frontier.plan.chains.values():
            if not chain.is_trained:
                one = Occupant(chain.id, chain.index, frontier.seconds_left(chain))
                by_slot |= dict.fromkeys((chain.slot, *chain.members), one)
    return by_slot


def reserve(
    frontier: Frontier,
    spans: Sequence[Span],
    count: Count,
    slots: Iterable[SlotDescription],
    busy: Mapping[str, Occupant],
    now: float,
) -> Reservation | None:
    """The slots of one machine and kind that are free soonest; None if no machine has enough healthy ones."""
    best: tuple[float, Sequence[SlotDescription]] | None = None
    for (_, kind), group in groups_of(frontier.plan, slots).items():
        ranks = count(kind)
        soonest = sorted(group, key=lambda slot: (_seconds(busy, slot), slot.name))[:ranks]
        if len(soonest) == ranks and (best is None or _seconds(busy, soonest[-1]) < best[0]):
            best = _seconds(busy, soonest[-1]), soonest
    if best is None:
        return None
    names = frozenset(slot.name for slot in best[1])
    stages = {busy[name].chain: busy[name].index for name in names if name in busy}
    head = (spans[0].node, spans[0].start)
    return Reservation(frontier.id, head, paying_study(spans), names, now + best[0], stages)


def _seconds(busy: Mapping[str, Occupant], slot: SlotDescription) -> float:
    return busy[slot.name].seconds if slot.name in busy else 0.0


def overdue_chains(reservation: Reservation, busy: Mapping[str, Occupant]) -> set[ChainId]:
    """The chains on reserved slots that have begun another stage since the reservation, and must stop."""
    present = {busy[name] for name in reservation.slots if name in busy}
    return {each.chain for each in present if each.index > reservation.stages.get(each.chain, each.index)}


def fitting_spans(frontier: Frontier, spans: Sequence[Span], seconds: float, kind: str) -> Sequence[Span]:
    """The first spans of a path that take at most `seconds` on a slot of that kind."""
    fitting = 0
    for span in spans:
        seconds -= frontier.seconds(span, gpu_of(kind))
        if seconds < 0:
            break
        fitting += 1
    return spans[:fitting]
