"""Runs on: the tick's thread.

Gives the most urgent work to free slots. Which slot gets what is said in `app.scheduling.placement`.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.domain import commands as c
from app.domain.chain_assignment import ChainAssignment, SlotDescription, verification_device
from app.domain.decide import decide
from app.domain.events import PlanOpened
from app.domain.search_plan import SearchPlan
from app.domain.stage_tree import Place
from app.domain.terms import ChainId, PlanId
from app.domain.trainer_check import can_train
from app.events import RowsPort, SlotTaken, VersionConflict
from app.exactness.verification import keep_at
from app.scheduling.fair_share import NO_CONTENTION, Choice, FairShare, slot_limits
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import GangPath, may_have_gangs
from app.scheduling.packs import (
    choose_leader,
    cut_at_branch,
    cut_at_isolated,
    cut_where_lanes_fill,
    is_gathering,
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
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports, messages

logger = logging.getLogger(__name__)

CHOOSING = "choosing what is trained next"

MOST_PASSED_OVER = 100
"""How many places that no slot can take now are passed over, before a tick lets the rest wait as well."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Spans that a slot is to run in a row; of a pack, several such rows at once. measure: as in `ChainAssignment`.

    gathered: how several slots came to it, where that was a question.
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
    """Takes the most urgent path, gives it to a slot on record, and sends it; what cannot be placed waits."""

    def __init__(self, ports: Ports, frontiers: FrontierCache, dispatch: Dispatch) -> None:
        self._ports, self._frontiers, self._dispatch, self._fence = ports, frontiers, dispatch, ports.fence
        self.gangs = Gangs(ports, frontiers)

    def assign(self, slots: Candidates, balance: FairShare = NO_CONTENTION, *, may_widen: bool = True) -> Candidates:
        """Give work to free slots, until one of both runs out; the slots as they are then, without the slots held for
        others to be free.

        balance: what is due to each study. may_widen: whether a path may have more slots than it must, since nothing
        else is left for them. Raises `DatabaseUnavailable`.
        """
        frontiers = self._offered(slots) if slots.free else []
        self.gangs.look(self._frontiers.usable(), slots)

        def following() -> Placed | None:
            return self._next(self._ready(frontiers, slots), slots, balance, may_widen)

        while slots.free and (placed := following()) is not None:
            is_settled = True
            with self._fence.around(placed.frontier.id, "giving its work to slots"):
                is_settled = self._give(placed, len(slots.free))
                slots = slots.excluding(placed.slots) if is_settled else slots
            self._frontiers.refresh(placed.frontier.id, fresh=False)
            if not is_settled:
                break
        return self.gangs.open(slots)

    def _ready(self, frontiers: Sequence[Frontier], slots: Candidates) -> Sequence[Frontier]:
        """Without the plans whose trainer was tried on no free slot's device, or whose packs are being measured."""

        def is_ready(frontier: Frontier) -> bool:
            is_measured = self._is_undecided(frontier) and bool(frontier.plan.chains)
            return bool(self._checked(frontier, slots).free) and not is_measured

        left = [frontier for frontier in frontiers if not self._fence.is_held(frontier.id)]
        return self._fence.those(left, "looking whether it is ready", is_ready)

    def _checked(self, frontier: Frontier, slots: Candidates) -> Candidates:
        """The free slots on whose kinds of device the plan's trainer has trained: elsewhere, it is tried first."""
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
    ) -> Placed | None:
        """The most urgent path that a slot can take now; before it, the one for which slots were held."""
        if (due := self.gangs.due(frontiers, lambda frontier: self._checked(frontier, slots))) is not None:
            return _gathered(due)
        passed_over: dict[PlanId, set[Place]] = {}
        for _ in range(MOST_PASSED_OVER):
            left = [frontier for frontier in frontiers if not self._fence.is_held(frontier.id)]
            choice = self._fence.among(left, CHOOSING, lambda plans: self._ports.policy(plans, passed_over, balance))
            if choice is None:
                return None
            frontier, spans = choice
            with self._fence.around(frontier.id, CHOOSING):
                places = passed_over.setdefault(frontier.id, set())
                placed = self._placed(choice, left, places, slots, may_widen)
                if placed is not None:
                    return placed
                places.add((spans[0].node, spans[0].start))
        return None

    def _placed(
        self,
        choice: Choice,
        frontiers: Sequence[Frontier],
        passed_over: Container[Place],
        slots: Candidates,
        may_widen: bool,
    ) -> Placed | None:
        """The slots for a path; None where none takes it now."""
        frontier, spans = choice
        able = self._checked(frontier, slots)
        if may_have_gangs(frontier.plan, spans[0]):
            gang = self.gangs.gather(choice, frontiers, able, may_widen=may_widen)
        else:
            resume = resume_point(frontier.plan, spans[0])
            slot = place(frontier.plan, frontier.id, spans, resume, self.gangs.open(able))
            if slot is not None and not is_gathering(frontier, spans[0], slot.name):
                return self._packed(choice, passed_over, slot, slots)
            gang = None
        if gang is None:
            gang = self.gangs.backfill(choice, able)
        return None if gang is None else _gathered(gang)

    def _packed(
        self, choice: Choice, passed_over: Container[Place], slot: SlotDescription, slots: Candidates
    ) -> Placed:
        """With the paths that the slot trains together with the chosen one, where the plan's stages are packed."""
        (frontier, spans), opened = choice, choice[0].plan.opened
        assert opened is not None  # or no slot would have taken it
        if self._is_undecided(frontier):
            width = widest(frontier.plan, _with_trainer(slots.healthy, opened))
            return Placed(frontier, [spans[:1]], slot, is_pack=True, measure=width)
        is_alone = frontier.plan.nodes[spans[0].node].alone
        if is_alone or not (self._ports.packs and frontier.plan.packing):
            return Placed(frontier, [cut_at_isolated(frontier.plan, spans)], slot, is_pack=False)
        if frontier.plan.is_isolated(spans[0].node, spans[0].start) or spans[0].node in frontier.plan.means:
            return Placed(frontier, [spans[:1]], slot, is_pack=True)
        well, free = (_with_trainer(some, opened) for some in (slots.healthy, slots.free))
        most, more = slot_limits(frontier, spans[0].study, well, free)
        lead = cut_at_branch(frontier, choose_leader(frontier, spans, passed_over, most, slot))
        others = pack_members(frontier, lead, passed_over, more, slot)
        return Placed(frontier, cut_where_lanes_fill(frontier, [lead, *others], passed_over, more), slot, is_pack=True)

    def _offered(self, slots: Candidates) -> list[Frontier]:
        """The plans whose trainer a slot has; where none has, it is said."""
        offered = partial(self._is_offered, slots)
        return self._fence.those(self._frontiers.usable(), "looking whether a slot has its trainer", offered)

    def _is_offered(self, slots: Candidates, frontier: Frontier) -> bool:
        opened, about = frontier.plan.opened, f"trainer of {frontier.id}"
        if opened is None:
            return False
        if any(has_trainer(slot, opened) for slot in slots.healthy):
            self._ports.problems.clear(about)
            return True
        self._ports.problems.report(about, f"plan {frontier.id} waits: {missing_trainer_text(opened, slots.healthy)}")
        return False

    def _give(self, placed: Placed, sharers: int) -> bool:
        """Record that a slot has a chain, or a pack of them, and send it.

        False when another tick was faster: the next one will see it.
        """
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
            self.gangs.note(placed.gathered, first)
        self._dispatch.send(first, messages(assignment), placed.slot.name)
        self._dispatch.invite(first, assignment)
        return True

    def _assignments(self, placed: Placed, sharers: int) -> dict[str, ChainAssignment]:
        """By chain."""
        frontier, plan = placed.frontier, placed.frontier.plan
        chains = [self._ports.new_id() for _ in placed.paths]
        room = self._room_of_chain(plan, sharers * len(chains))
        pack = tuple(chains) if placed.is_pack else ()
        paths = zip(chains, placed.paths, strict=True)
        by_chain = {chain: assign(frontier, path, stages_of(plan, path), room) for chain, path in paths}
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
        return {chain: replace(assignment, **how, describe=chain in tells) for chain, assignment in by_chain.items()}

    def _room_of_chain(self, plan: SearchPlan, sharers: int) -> int:
        """The bytes that a chain may keep inside its stages: its share of the bytes that the plan has left.

        The newest state is kept in any case, however large it is: an accident costs the whole stage without one.
        """
        most = self._ports.intermediate_bytes
        return most and max(1, (most - plan.intermediate_bytes) // sharers)

    def _record(self, placed: Placed, work: Mapping[str, ChainAssignment]) -> None:
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


def _with_trainer(slots: Iterable[SlotDescription], opened: PlanOpened) -> int:
    """How many of the slots have a plan's trainer."""
    return sum(has_trainer(slot, opened) for slot in slots)


def _gathered(path: GangPath) -> Placed:
    return Placed(path.frontier, [path.spans], path.gang.leader, is_pack=False, gathered=path)
