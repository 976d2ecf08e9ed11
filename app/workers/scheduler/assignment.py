"""Gives the most urgent work to free slots. `app.scheduling.placement` chooses the slot.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.domain import commands as c
from app.domain.chain_assignment import ChainAssignment
from app.domain.decide import decide
from app.domain.events import PlanOpened
from app.domain.search_plan import SearchPlan
from app.domain.slots import SlotDescription, verification_device
from app.domain.stage_tree import Place
from app.domain.terms import ChainId, PlanId
from app.domain.trainer_check import can_train
from app.events import RowsPort, SlotTaken, VersionConflict
from app.exactness.verification import keep_at
from app.scheduling.fair_share import NO_CONTENTION, Choice, FairShare, slot_limits
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import GangPath, can_have_gangs
from app.scheduling.packs import (
    choose_leader,
    cut_at_branch,
    cut_at_suspect,
    cut_to_refill_lanes,
    is_waiting_for_pack,
    pack_members,
)
from app.scheduling.placement import (
    Candidates,
    assign,
    has_trainer,
    missing_trainer_text,
    place,
    resume_point,
    stages_of,
)
from app.scheduling.widths import batch_of, widest
from app.workers.scheduler.gangs import Gangs
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports, message_count

logger = logging.getLogger(__name__)

CHOOSING = "choosing the next stages"

MAX_SKIPPED = 100
"""A tick skips this many places that no slot can take now; then the rest waits for the next tick."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Spans that a slot will run in a row; for a pack, several such rows at once. measure: as in `ChainAssignment`.

    gathered: how its slots were gathered, where several were possible.
    """

    frontier: Frontier
    paths: Sequence[Sequence[Span]]
    slot: SlotDescription
    is_pack: bool
    measure: int = 0
    gathered: GangPath | None = None

    @property
    def slots(self) -> frozenset[str]:
        """The names of all its slots."""
        return frozenset([self.slot.name]) if self.gathered is None else self.gathered.gang.names


class Assignment:
    """Gives the most urgent paths to slots, records and sends them. Paths that no slot can take wait."""

    def __init__(self, ports: Ports, frontiers: FrontierCache, dispatch: Dispatch) -> None:
        self._ports, self._frontiers, self._dispatch, self._fence = ports, frontiers, dispatch, ports.fence
        self.gangs = Gangs(ports, frontiers)

    def assign(self, slots: Candidates, balance: FairShare = NO_CONTENTION, *, may_widen: bool = True) -> Candidates:
        """Give work to free slots until one of both runs out. Returns the remaining slots, without those reserved for
        gangs.

        balance: the share of slots due to each study.
        may_widen: whether a path may get more slots than it needs, because they would be idle. Raises
            `DatabaseUnavailable`.
        """
        frontiers = self._plans_with_trainer(slots) if slots.free else []
        self.gangs.look(self._frontiers.usable(), slots)

        def next_placement() -> Placement | None:
            return self._next(self._ready_plans(frontiers, slots), slots, balance, may_widen)

        while slots.free and (placed := next_placement()) is not None:
            is_settled = True
            with self._fence.guard(placed.frontier.id, "giving its work to slots"):
                is_settled = self._assign(placed, len(slots.free))
                slots = slots.excluding(placed.slots) if is_settled else slots
            self._frontiers.refresh(placed.frontier.id, fresh=False)
            if not is_settled:
                break
        return self.gangs.exclude_reserved(slots)

    def _ready_plans(self, frontiers: Sequence[Frontier], slots: Candidates) -> Sequence[Frontier]:
        """Plans whose trainer was checked on a free slot's kind of device, unless packs are being measured."""

        def is_ready(frontier: Frontier) -> bool:
            is_measured = self._is_undecided(frontier) and bool(frontier.plan.chains)
            return bool(self._checked_slots(frontier, slots).free) and not is_measured

        left = [frontier for frontier in frontiers if not self._fence.is_held(frontier.id)]
        return self._fence.select(left, "looking whether it is ready", is_ready)

    def _checked_slots(self, frontier: Frontier, slots: Candidates) -> Candidates:
        """The free slots on whose kinds of device the plan's trainer was checked; on others a check comes first."""
        if not self._ports.proofs:
            return slots
        kinds = set(map(verification_device, slots.free))
        checked = {kind for kind in kinds if can_train(frontier.plan, kind)}
        free = [slot for slot in slots.free if verification_device(slot) in checked]
        return slots if checked == kinds else Candidates(slots.healthy, free)

    def _is_undecided(self, frontier: Frontier) -> bool:
        return self._ports.packs and frontier.plan.packing is None

    def _next(
        self, frontiers: Sequence[Frontier], slots: Candidates, balance: FairShare, may_widen: bool
    ) -> Placement | None:
        """The most urgent path that a slot can take now. The path of a complete reservation comes first."""
        if (due := self.gangs.due_path(frontiers, lambda frontier: self._checked_slots(frontier, slots))) is not None:
            return _gang_placement(due)
        passed_over: dict[PlanId, set[Place]] = {}
        for _ in range(MAX_SKIPPED):
            left = [frontier for frontier in frontiers if not self._fence.is_held(frontier.id)]
            choice = self._fence.apply(left, CHOOSING, lambda plans: self._ports.policy(plans, passed_over, balance))
            if choice is None:
                return None
            frontier, spans = choice
            with self._fence.guard(frontier.id, CHOOSING):
                places = passed_over.setdefault(frontier.id, set())
                placed = self._place(choice, left, places, slots, may_widen)
                if placed is not None:
                    return placed
                places.add((spans[0].node, spans[0].start))
        return None

    def _place(
        self,
        choice: Choice,
        frontiers: Sequence[Frontier],
        passed_over: Container[Place],
        slots: Candidates,
        may_widen: bool,
    ) -> Placement | None:
        """The slots for a path; None if none can take it now."""
        frontier, spans = choice
        able = self._checked_slots(frontier, slots)
        if can_have_gangs(frontier.plan, spans[0]):
            gang = self.gangs.gather(choice, frontiers, able, may_widen=may_widen)
        else:
            resume = resume_point(frontier.plan, spans[0])
            slot = place(frontier.plan, frontier.id, spans, resume, self.gangs.exclude_reserved(able))
            if slot is not None and not is_waiting_for_pack(frontier, spans[0], slot.name):
                return self._place_pack(choice, passed_over, slot, slots)
            gang = None
        if gang is None:
            gang = self.gangs.backfill(choice, able)
        return None if gang is None else _gang_placement(gang)

    def _place_pack(
        self, choice: Choice, passed_over: Container[Place], slot: SlotDescription, slots: Candidates
    ) -> Placement:
        """Add the paths that the slot trains together with the chosen one, if the plan's stages are packed."""
        (frontier, spans), opened = choice, choice[0].plan.opened
        assert opened is not None  # or no slot would have taken it
        if self._is_undecided(frontier):
            width = widest(frontier.plan, _count_with_trainer(slots.healthy, opened))
            return Placement(frontier, [spans[:1]], slot, is_pack=True, measure=width)
        is_alone = frontier.plan.nodes[spans[0].node].is_isolated
        if is_alone or not (self._ports.packs and frontier.plan.packing):
            return Placement(frontier, [cut_at_suspect(frontier.plan, spans)], slot, is_pack=False)
        if frontier.plan.is_suspect(spans[0].node, spans[0].start) or spans[0].node in frontier.plan.means:
            return Placement(frontier, [spans[:1]], slot, is_pack=True)
        well, free = (_count_with_trainer(some, opened) for some in (slots.healthy, slots.free))
        most, more = slot_limits(frontier, spans[0].study, well, free)
        lead = cut_at_branch(frontier, choose_leader(frontier, spans, passed_over, most, slot))
        others = pack_members(frontier, lead, passed_over, more, slot)
        return Placement(
            frontier, cut_to_refill_lanes(frontier, [lead, *others], passed_over, more), slot, is_pack=True
        )

    def _plans_with_trainer(self, slots: Candidates) -> list[Frontier]:
        """Plans whose trainer some slot has; the others are reported."""
        offered = partial(self._has_trainer_slot, slots)
        return self._fence.select(self._frontiers.usable(), "looking whether a slot has its trainer", offered)

    def _has_trainer_slot(self, slots: Candidates, frontier: Frontier) -> bool:
        opened, about = frontier.plan.opened, f"trainer of {frontier.id}"
        if opened is None:
            return False
        if any(has_trainer(slot, opened) for slot in slots.healthy):
            self._ports.problems.clear(about)
            return True
        self._ports.problems.report(about, f"plan {frontier.id} waits: {missing_trainer_text(opened, slots.healthy)}")
        return False

    def _assign(self, placed: Placement, sharers: int) -> bool:
        """Record and send a chain, or a pack of them. False if another tick was faster; the next tick will see that."""
        work = self._assignments(placed, sharers)
        try:
            self._record(placed, work)
        except SlotTaken:
            return True
        except VersionConflict as conflict:
            logger.info("not assigned: %s", conflict)
            return False
        first, assignment = next(iter(work.items()))
        if placed.gathered is not None:
            self.gangs.note_assigned(placed.gathered, first)
        self._dispatch.send(first, message_count(assignment), placed.slot.name)
        self._dispatch.invite(first, assignment)
        return True

    def _assignments(self, placed: Placement, sharers: int) -> dict[str, ChainAssignment]:
        """By chain."""
        frontier, plan = placed.frontier, placed.frontier.plan
        chains = [self._ports.new_id() for _ in placed.paths]
        room = self._intermediate_share(plan, sharers * len(chains))
        pack = tuple(chains) if placed.is_pack else ()
        paths = zip(chains, placed.paths, strict=True)
        is_new = placed.is_pack and placed.slot.device not in plan.profiles
        how: dict[str, Any] = {"pack": pack, "profile": is_new}
        if self._ports.proofs and not placed.is_pack:
            how["keep_at"] = keep_at(frontier, placed.paths[0])
        tells = {chains[0]} if placed.slot.device not in plan.environments else set[str]()
        if placed.measure:
            how |= {"packing": 1, "measure": placed.measure}
        if (gathered := placed.gathered) is not None:
            how |= {"most_ranks": gathered.most} | gathered.gang.assignment_fields(self._ports.new_id)
            if gathered.measures:
                how["measures_ranks"] = batch_of(plan.nodes[placed.paths[0][0].node])
        return {
            chain: assign(frontier, path, stages_of(plan, path), room, describe=chain in tells, **how)
            for chain, path in paths
        }

    def _intermediate_share(self, plan: SearchPlan, sharers: int) -> int:
        """A chain's bytes for states inside its stages: its share of the plan's remaining bytes.

        The newest state is always kept, however large: without it an accident would cost the whole stage.
        """
        most = self._ports.intermediate_bytes
        return most and max(1, (most - plan.intermediate_bytes) // sharers)

    def _record(self, placed: Placement, work: Mapping[str, ChainAssignment]) -> None:
        stream, slot, at = placed.frontier.id, placed.slot.name, self._ports.clock()
        progress = placed.frontier.progress_in({span.node for path in placed.paths for span in path})
        commands = [
            c.AssignChain(
                chain=ChainId(chain),
                slot=slot,
                stages=assignment.stages,
                at=at,
                progress=progress,
                members=assignment.members,
                kind=placed.gathered.gang.kind if placed.gathered and assignment.members else placed.slot.kind,
            )
            for chain, assignment in work.items()
        ]
        ttl, first = self._ports.lease_seconds, next(iter(work))

        def give(rows: RowsPort) -> None:
            for chain, assignment in work.items():
                rows.chains.assign(chain, stream, slot, assignment, ttl, None if chain == first else first)

        self._ports.transact(
            stream,
            lambda plan: [event for command in commands for event in decide(plan, command)],
            alongside=give,
            is_known=True,
        )


def _count_with_trainer(slots: Iterable[SlotDescription], opened: PlanOpened) -> int:
    return sum(has_trainer(slot, opened) for slot in slots)


def _gang_placement(path: GangPath) -> Placement:
    return Placement(path.frontier, [path.spans], path.gang.leader, is_pack=False, gathered=path)
