"""Chooses how many slots train a path together, if that is required or pays off.

Reservations are kept from tick to tick; a restarted scheduler makes them anew.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from app.domain.events import RanksProfiled
from app.domain.search_plan import Chain, Study
from app.domain.slots import SlotDescription, multi_machine_kind
from app.domain.terms import ChainId, PlanId
from app.events import change, profiles_on_record
from app.scheduling import gangs
from app.scheduling.fair_share import Choice, slots_used
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import Gang, GangPath, Reservation
from app.scheduling.packs import cut_at_branch, cut_at_suspect
from app.scheduling.placement import Candidates, able_slots, cut_to_budget, place, resume_point
from app.scheduling.widths import batch_of
from app.workers.scheduler.ports import FrontierCache, Ports

logger = logging.getLogger(__name__)

RESERVING = "holding slots that train together"

MAX_MEASUREMENTS = 2
"""How often packs, or gangs of one size, are measured in a plan. One measurement may fail by accident; after two,
trials run alone or on as few slots as possible, so that no study waits forever.
"""

IsWanted = Callable[[Frontier], bool]
"""Whether the reservation is still needed, given its plan."""


class Gangs:
    """Reserves slots for one path at a time. Does nothing unless a study asks for several slots."""

    def __init__(self, ports: Ports, frontiers: FrontierCache) -> None:
        self._ports, self._frontiers = ports, frontiers
        self._reservation: Reservation | None = None
        self._is_wanted: IsWanted = lambda frontier: False  # of the present one
        self._asked = set[ChainId]()  # preempted chains of the present reservation
        self._measuring: dict[PlanId, ChainId] = {}
        self._measured = Counter[tuple[PlanId, str, int]]()  # how often, by kind of device and number

    def look(self, frontiers: Sequence[Frontier], slots: Candidates) -> None:
        """Cancel a reservation that no trial needs or that lost a slot; preempt chains that hold it up too long.

        Raises `DatabaseUnavailable`.
        """
        held = self._reservation
        if held is None:
            return
        wanting = [frontier for frontier in frontiers if frontier.id == held.plan]
        wanting = self._ports.fence.select(wanting, RESERVING, self._is_wanted)
        if not wanting or not held.slots <= {slot.name for slot in slots.healthy}:
            self._reservation = None
            return
        busy = self._ports.fence.apply(frontiers, RESERVING, gangs.occupants)
        for chain in gangs.overdue_chains(held, busy) - self._asked:
            self._preempt(chain, next(name for name, each in busy.items() if each.chain == chain))

    def _preempt(self, chain: ChainId, slot: str) -> None:
        logger.info("chain %s leaves %s to a gang", chain, slot, extra={"chain": chain, "slot": slot})
        change(self._ports.records, lambda rows: rows.chains.ask_preempt(chain))
        self._ports.notify(chain, slot)
        self._asked.add(chain)

    def exclude_reserved(self, slots: Candidates) -> Candidates:
        """The slots without the reserved free ones."""
        return slots if self._reservation is None else slots.excluding(self._reservation.slots)

    def due_path(self, frontiers: Sequence[Frontier], able: Callable[[Frontier], Candidates]) -> GangPath | None:
        """The path of the reservation, once all its slots are free. able: the slots that may train a plan."""
        held = self._reservation
        frontier = next((each for each in frontiers if held is not None and each.id == held.plan), None)
        if held is None or held.verifies_on or frontier is None:
            return None
        with self._ports.fence.guard(frontier.id, RESERVING):
            slots = able(frontier)
            mine = Candidates(slots.healthy, [slot for slot in slots.free if slot.name in held.slots])
            if len(mine.free) == len(held.slots):
                self._reservation = None
                paths = cut_to_budget(frontier.plan, [frontier.path(held.head, held.study)])
                return self._gather(frontier, self._chain_spans(frontier, paths[0]), mine) if paths else None
        return None

    def gather(
        self, choice: Choice, frontiers: Sequence[Frontier], slots: Candidates, *, may_widen: bool
    ) -> GangPath | None:
        """The slots that take a path now; None if it waits for more of them, or for a look at other idle work.

        may_widen: whether idle slots could get no other work.
        """
        frontier, spans = choice[0], self._chain_spans(*choice)
        free = self.exclude_reserved(slots)
        least = _least_ranks(frontier, spans, free.free or slots.healthy)
        if gangs.is_moldable(frontier.plan, spans[0]):
            if gangs.is_being_checked(frontier.plan):
                return None  # the checking slot is free in a moment
            ready = self._ports.fence.apply(frontiers, RESERVING, partial(gangs.paths_ready, most=len(free.free)))
            spare = len(free.free) - ready + 1
            if spare > least:
                return self._widen(frontier, choice[1], free, spare) if may_widen else None
        gathered = self._gather(frontier, spans, free)
        if gathered is None and _least_ranks(frontier, spans, slots.healthy) > 1:
            head, able = (spans[0].node, spans[0].start), list(able_slots(frontier.plan, spans, slots.healthy))
            study = gangs.paying_study(spans)
            self._reserve(frontier, spans, able, frontiers, lambda frontier: head in frontier.heads(study))
        return gathered

    def verification_gang(
        self,
        frontier: Frontier,
        spans: Sequence[Span],
        kind: str,
        slots: Candidates,
        is_wanted: IsWanted,
        waiting: Sequence[Frontier],
    ) -> Gang | None:
        """The free slots of one kind of device for a verification: as many as these spans need.

        slots: the able ones of the kind.
        waiting: all plans, if the verification is urgent: then slots are reserved for it while it `is_wanted`.
        """
        held, ranks = self._reservation, gangs.least_ranks(frontier.plan, spans, kind)
        is_ours = held is not None and (held.plan, held.verifies_on) == (frontier.id, kind)
        free = slots.free
        if held is not None and ranks > 1:
            free = [slot for slot in free if (slot.name in held.slots) == is_ours]
        gang = gangs.verification_gang(frontier.plan, ranks, free)
        if gang is None and waiting:
            self._reserve(frontier, spans, slots.healthy, waiting, is_wanted, verifies_on=kind)
        if gang is not None and is_ours:
            self._reservation = None
        return gang

    def is_reserved(self, chain: Chain) -> bool:
        """Whether one of a chain's slots is reserved for others."""
        held = self._reservation
        return held is not None and not held.slots.isdisjoint((chain.slot, *chain.members))

    def backfill(self, choice: Choice, slots: Candidates) -> GangPath | None:
        """A reserved slot for work that ends before the reservation starts, also of other studies."""
        frontier, spans = choice[0], self._chain_spans(*choice)
        plan, held = frontier.plan, self._reservation
        if (
            held is None
            or plan.packing != 0
            or not plan.stages_run
            or charged_study(frontier, spans).spec.least_ranks > 1
        ):
            return None
        mine = [slot for slot in slots.free if slot.name in held.slots]
        left = held.until - self._ports.elapsed()
        part = gangs.fitting_spans(frontier, spans, left, mine[0].kind) if mine else ()
        if not part or plan.nodes[part[0].node].is_isolated:
            return None
        enough = [slot for slot in mine if gangs.least_ranks(plan, part, slot.kind) == 1]
        return self._gather(frontier, part, Candidates(slots.healthy, enough))

    def note_assigned(self, gathered: GangPath, chain: str) -> None:
        """Count the measurement if the assigned chain is one."""
        if gathered.measures:
            plan = gathered.frontier.id
            self._measuring[plan] = ChainId(chain)
            self._measured[plan, gathered.gang.kind, len(gathered.gang.names)] += 1

    def _chain_spans(self, frontier: Frontier, spans: Sequence[Span]) -> Sequence[Span]:
        """The spans of a path that form one chain; only the first span if the path may get more slots next time."""
        if charged_study(frontier, spans).spec.most_ranks > 1 and gangs.is_moldable(frontier.plan, spans[0]):
            return spans[:1]
        return cut_at_suspect(frontier.plan, spans)

    def _gather(
        self, frontier: Frontier, spans: Sequence[Span], slots: Candidates, ranks: int | None = None
    ) -> GangPath | None:
        """ranks: as few as possible by default."""
        plan, resume = frontier.plan, resume_point(frontier.plan, spans[0])

        def count(kind: str) -> int:
            return ranks or gangs.least_ranks(plan, spans, kind)

        alone = [slot for slot in slots.free if count(slot.kind) == 1]
        slot = place(plan, frontier.id, spans, resume, Candidates(slots.healthy, alone)) if alone else None
        gang = Gang(slot) if slot else gangs.gather(plan, frontier.id, spans, resume, slots, count)
        if gang is None:
            return None
        return GangPath(frontier, gang, spans, most=gangs.largest_gang(plan, spans, gang.leader.kind, slots.healthy))

    def _widen(self, frontier: Frontier, spans: Sequence[Span], free: Candidates, spare: int) -> GangPath | None:
        """Use as many slots as pay off, on the machine and kind where most do. Unknown speeds are measured first.

        If the path can never get more, the chain keeps its gang until other trials can begin.
        """
        study = charged_study(frontier, spans)
        used, best, whole = slots_used([frontier])[study.id], (0, free), spans[:1]
        all_groups = gangs.groups_of(frontier.plan, free.healthy)
        for (host, device), group in gangs.groups_of(
            frontier.plan, able_slots(frontier.plan, spans, free.free)
        ).items():
            kind = device if host else multi_machine_kind(device)
            here, least = Candidates(free.healthy, group), gangs.least_ranks(frontier.plan, spans[:1], device)
            most = gangs.room_for(study, spare, len(group), used, least)
            profile = self._profile(frontier, spans[0], kind, most)
            if most > least and not gangs.is_measured(profile, most) and self._may_measure(frontier, kind, most):
                gathered = self._gather(frontier, spans[:1], here, most)
                if gathered is not None:
                    return replace(gathered, measures=True)
            ranks = gangs.worthwhile_ranks(profile, least, min(most, len(group)))
            if ranks > max(best[0], study.spec.least_ranks):
                most = gangs.room_for(study, study.spec.most_ranks, len(all_groups[host, device]), 0, least)
                is_best = ranks >= gangs.worthwhile_ranks(profile, least, most)
                best, whole = (ranks, here), cut_at_branch(frontier, spans) if is_best else spans[:1]
        return self._gather(frontier, whole, best[1], best[0] or None) or self._gather(frontier, spans[:1], free)

    def _may_measure(self, frontier: Frontier, kind: str, ranks: int) -> bool:
        """Not during another measurement, nor after too many failed ones."""
        is_under_way = self._measuring.get(frontier.id) in frontier.plan.chains
        return not is_under_way and self._measured[frontier.id, kind, ranks] < MAX_MEASUREMENTS

    def _profile(self, frontier: Frontier, span: Span, kind: str, most: int) -> RanksProfiled | None:
        """The plan's measurement for a kind, or that of a plan with the same models. Raises `DatabaseUnavailable`."""
        plan = frontier.plan
        own = plan.ranks_profiles.get(kind)
        if plan.opened is None or most == 1 or gangs.is_measured(own, most):
            return own
        log, batch = self._ports.records.log, batch_of(plan.nodes[span.node])
        other = profiles_on_record(log, plan.opened, batch, RanksProfiled).get(kind)
        if other is None or other == own or not gangs.is_measured(other, most):
            return own
        self._ports.transact(frontier.id, lambda plan: [other] if plan.ranks_profiles.get(kind) != other else [])
        self._frontiers.refresh(frontier.id, fresh=False)
        return other

    def _reserve(
        self,
        frontier: Frontier,
        spans: Sequence[Span],
        well: Sequence[SlotDescription],
        frontiers: Sequence[Frontier],
        is_wanted: IsWanted,
        verifies_on: str = "",
    ) -> None:
        if self._reservation is not None:
            return
        busy = self._ports.fence.apply(frontiers, RESERVING, gangs.occupants)
        about, plan = f"gangs of {frontier.id}", frontier.plan
        self._asked.clear()
        held = gangs.reserve(
            frontier, spans, lambda kind: gangs.least_ranks(plan, spans, kind), well, busy, self._ports.elapsed()
        )
        self._reservation, self._is_wanted = held and replace(held, verifies_on=verifies_on), is_wanted
        if held is None:
            study, ranks = charged_study(frontier, spans), _least_ranks(frontier, spans, well)
            says = (
                f"says ranks: {ranks}" if ranks == study.spec.least_ranks else f"needs {ranks} devices for its memory"
            )
            self._ports.problems.report(
                about,
                f"study {study.id} waits: it {says}, and no machine has this many healthy slots of one kind of "
                "device with its trainer",
            )
        else:
            self._ports.problems.clear(about)


def charged_study(frontier: Frontier, spans: Sequence[Span]) -> Study:
    """The study for which a path was chosen."""
    return frontier.plan.studies[gangs.paying_study(spans)]


def _least_ranks(frontier: Frontier, spans: Sequence[Span], slots: Sequence[SlotDescription]) -> int:
    """The fewest of these slots that may train a path, on the best kind of device."""
    kinds = {slot.kind for slot in slots} or {""}
    return min(gangs.least_ranks(frontier.plan, spans, kind) for kind in kinds)
