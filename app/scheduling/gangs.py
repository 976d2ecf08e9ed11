"""How many slots train a path, and which: the other end of packing, for when slots are more than paths.

A *gang* is some free slots of one kind of device, of one machine if it has enough. With shards the bits are the same
whatever their number, so it is chosen anew for each stage: where fewer paths are ready than slots are free, the most
urgent one gets the largest power of two that pays, and the others one slot each.

A path that needs more slots than are free waits with a *reservation*: the slots that are free soonest are held for it,
for as long as the stages under way on them last, and meanwhile take what ends before that. There is one reservation at
a time, and a gang is taken as a whole or not at all, so no two can wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from app.domain.chain_assignment import ResumePoint, SlotDescription, gpu_of, multi_machine_kind, shared_gpu, site
from app.domain.events import RanksProfiled
from app.domain.search_plan import SearchPlan, Study, speedup
from app.domain.stage_tree import Place
from app.domain.terms import LAUNCHED, ChainId, PlanId, StudyId, VerificationKind
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import Candidates, group_by_kind, has_trainer, leaders
from app.scheduling.widths import batch_of

PAYS = 0.6
"""So many ranks are worth their slots if they are at least so many times as fast as one, for each of them."""

Kind = tuple[str, str]
"""A machine, or "" for all that can reach each other, and a kind of device."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The slot that has a chain, and the slots that are lent to it. is_apart: whether each of their workers starts a
    rank of its own, since the leader's does not see all the devices.
    """

    leader: SlotDescription
    members: tuple[SlotDescription, ...] = ()
    is_apart: bool = False

    @property
    def kind(self) -> str:
        """What its speed goes by."""
        return multi_machine_kind(self.leader.kind) if self.is_apart else self.leader.kind

    @property
    def names(self) -> frozenset[str]:
        return frozenset(slot.name for slot in (self.leader, *self.members))

    def assignment_fields(self, new_secret: Callable[[], str]) -> dict[str, Any]:
        """Of an assignment, what says with whom its slot trains, and where they meet."""
        meeting = {"address": self.leader.address, "secret": new_secret()} if self.is_apart else None
        return {"members": tuple(slot.name for slot in self.members), "meeting": meeting}


@dataclass(frozen=True, slots=True)
class GangPath:
    """The slots that take a path, or the first part of it. measures: only to see how many of them would pay.

    most: so many slots there are that it could have, should these have too little memory.
    """

    frontier: Frontier
    gang: Gang
    spans: Sequence[Span]
    measures: bool = False
    most: int = 1


def may_have_gangs(plan: SearchPlan, span: Span) -> bool:
    """Whether several slots may train what begins with a span."""
    return span.study is not None and plan.studies[span.study].most_ranks > 1


def is_moldable(plan: SearchPlan, span: Span) -> bool:
    """Whether the scheduler says how many slots train it; a node that is trained alone has as few as may be."""
    if span.study is None:
        return False
    study = plan.studies[span.study]
    return study.least_ranks < study.most_ranks and not plan.nodes[span.node].alone


def is_being_checked(plan: SearchPlan) -> bool:
    """Whether a slot tries the plan's trainer, which takes a moment."""
    return any(chain.proof == VerificationKind.CHECK for chain in plan.chains.values())


def paths_ready(frontiers: Iterable[Frontier], most: int) -> int:
    """How many paths could be begun now; it is enough to know that they are `most`."""
    heads = (head for frontier in frontiers for head in frontier.heads())
    return sum(1 for _ in islice(heads, most))


def least_ranks(plan: SearchPlan, spans: Sequence[Span], kind: str) -> int:
    """As few slots of a kind may train a path: as its study says, or as many as its batches were found to need."""
    study = plan.studies[paying_study(spans)]
    needed = max(plan.ranks_needed(kind, batch_of(plan.nodes[span.node])) for span in spans) if plan.needs else 1
    return min(study.most_ranks, max(study.least_ranks, needed))


def paying_study(spans: Sequence[Span]) -> StudyId:
    """The study on whose behalf a path was chosen."""
    study = spans[0].study
    assert study is not None  # each path is trained for somebody
    return study


def largest_gang(plan: SearchPlan, spans: Sequence[Span], kind: str, healthy: Iterable[SlotDescription]) -> int:
    """The most slots of a kind that a path could ever have on one machine."""
    groups = groups_of(plan, [slot for slot in healthy if slot.kind == kind]).values()
    largest = max(map(len, groups), default=1)
    return min(plan.studies[paying_study(spans)].most_ranks, 1 << (largest.bit_length() - 1))


def room_for(study: Study, spare: int, group: int, used: int, least: int) -> int:
    """The most slots that one path of a study can have. spare: how many are left if each other path gets one.

    group: the free ones of one machine and kind. used: how many the study has. least: as few as may be.
    """
    cap = study.max_slots or inf
    most = int(max(1, min(study.most_ranks, spare, group, cap - used)))
    return max(least, 1 << (most.bit_length() - 1))


def ranks_that_pay(profile: RanksProfiled | None, least: int, most: int) -> int:
    """The most ranks up to `most` that are worth their slots, as far as was measured; or as few as may be."""
    measured = {} if profile is None else profile.step_seconds
    paying = (ranks for ranks in powers(least, most) if str(ranks) in measured and pays(measured, ranks))
    return max(paying, default=least)


def pays(step_seconds: Mapping[str, float], ranks: int) -> bool:
    return speedup(step_seconds, ranks) >= PAYS * ranks


def is_measured(profile: RanksProfiled | None, most: int) -> bool:
    """Whether somebody has measured which ranks up to `most` pay. Where some do not, more of them do not either."""
    if profile is None or profile.refusal:
        return profile is not None
    widest = max(map(int, profile.step_seconds))
    return widest >= most or not pays(profile.step_seconds, widest)


def powers(least: int, most: int) -> Iterator[int]:
    """The powers of two from the one to the other."""
    while least <= most:
        yield least
        least *= 2


def groups_of(plan: SearchPlan, slots: Iterable[SlotDescription]) -> dict[Kind, list[SlotDescription]]:
    """The slots that may train the plan together: of each machine, and then of several that reach each other.

    A share of a GPU stands alone, and so does an unknown device. A script's launcher starts processes on one machine.
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
"""How many slots of a kind a path must have."""


def gather(
    plan: SearchPlan, id: PlanId, spans: Sequence[Span], resume: ResumePoint | None, slots: Candidates, count: Count
) -> Gang | None:
    """The free slots that take these spans together; None where there are not so many.

    Of several machines, one where the model is in memory, or else the one with fewest free slots beyond these; slots of
    more than one where no machine has so many. Only which slot leads goes by where the user's code has failed: that is
    on record for the leader.
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
            best = order, Gang(leader, tuple(rest[: ranks - 1]), is_apart=not machine)
    return best and best[1]


def verification_gang(plan: SearchPlan, ranks: int, slots: Sequence[SlotDescription]) -> Gang | None:
    """Of these slots, all of one kind, so many as make a proof together: of one machine, if one has enough."""
    if ranks == 1:
        return Gang(slots[0]) if slots else None
    groups = [(not machine, len(group), group) for (machine, _), group in groups_of(plan, slots).items()]
    fitting = [each for each in groups if each[1] >= ranks]
    if not fitting:
        return None
    is_apart, _, group = min(fitting, key=lambda each: each[:2])
    return Gang(group[0], tuple(group[1:ranks]), is_apart)


def verification_kinds(plan: SearchPlan, ranks: int, healthy: Sequence[SlotDescription]) -> list[str]:
    """The kinds of device of which there are enough slots for a proof by so many ranks."""
    kinds = group_by_kind(plan, Candidates(healthy, healthy))
    return [kind for kind, able in kinds if verification_gang(plan, ranks, able.healthy) is not None]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are held for a gang. head: where its path begins. study: on whose behalf. until: when they should all
    be free.

    stages: the stage that each chain on them was in, by its number, when they were reserved. verifies_on: the kind of
    device on which they make a proof; "" where something new is trained.
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
    """A chain that has a slot. seconds: how long its stage goes on. index: the number of that stage."""

    chain: ChainId
    index: int
    seconds: float


def occupants(frontiers: Iterable[Frontier]) -> dict[str, Occupant]:
    """What has each slot that is not free, by its name."""
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
    """The slots of one machine and kind that are free soonest, of all that are healthy; None where none has so many."""
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


def overdue(reservation: Reservation, busy: Mapping[str, Occupant]) -> set[ChainId]:
    """The chains on reserved slots that have gone on to another stage, or were begun since: they are to leave."""
    there = {busy[name] for name in reservation.slots if name in busy}
    return {each.chain for each in there if each.index > reservation.stages.get(each.chain, each.index)}


def fitting_spans(frontier: Frontier, spans: Sequence[Span], seconds: float, kind: str) -> Sequence[Span]:
    """The part of a path whose stages should be over in so many seconds on a slot of that kind."""
    fitting = 0
    for span in spans:
        seconds -= frontier.seconds(span, gpu_of(kind))
        if seconds < 0:
            break
        fitting += 1
    return spans[:fitting]
