"""Runs on: the tick's thread.

Gives the most urgent work to free slots, and chooses how wide packs are where a plan was opened without a width,
before any of its stages is trained. Which slot gets what is said in `app.scheduling.assignment`.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain import commands as c
from app.domain.assignment import ChainAssignment, SlotDescription, kind_of_proofs
from app.domain.decide import decide
from app.domain.events import PackingProfiled, PlanOpened
from app.domain.exactness import may_train
from app.domain.search_plan import SearchPlan
from app.domain.stage_tree import Place
from app.domain.terms import ChainId, PlanId, Refused
from app.events import PlanUnusable, RowsPort, SlotTaken, VersionConflict, packs_on_record
from app.scheduling.assignment import Candidates, assign, has_trainer, place, resume_point, stages_of, without_trainer
from app.scheduling.fair_share import NO_CONTENTION, Choice, FairShare, allowed
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import GangPath, may_have_gangs
from app.scheduling.packs import choose_leader, is_gathering, isolated, pack_members, until_branch, until_filled
from app.scheduling.proofs import keep_at
from app.scheduling.widths import batch_of, chosen, covers, widest
from app.workers.scheduler.gangs import MOST_MEASUREMENTS, Gangs
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports, messages

logger = logging.getLogger(__name__)

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
        self._ports, self._frontiers, self._dispatch = ports, frontiers, dispatch
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
            is_settled = self._give(placed, len(slots.free))
            self._frontiers.refresh(placed.frontier.id, fresh=False)
            if not is_settled:
                break
            slots = slots.without(placed.slots)
        return self.gangs.open(slots)

    def _ready(self, frontiers: Sequence[Frontier], slots: Candidates) -> Sequence[Frontier]:
        """Without the plans whose trainer was tried on no free slot's device, or whose packs are being measured."""
        checked = [each for each in frontiers if self._checked(each, slots).free]
        return [each for each in checked if not (self._is_undecided(each) and each.plan.chains)]

    def _checked(self, frontier: Frontier, slots: Candidates) -> Candidates:
        """The free slots on whose kinds of device the plan's trainer has trained: elsewhere, it is tried first."""
        if not self._ports.proofs:
            return slots
        kinds = set(map(kind_of_proofs, slots.free))
        checked = {kind for kind in kinds if may_train(frontier.plan, kind)}
        free = [slot for slot in slots.free if kind_of_proofs(slot) in checked]
        return slots if checked == kinds else Candidates(slots.well, free)

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
            choice = self._ports.policy(frontiers, passed_over, balance)
            if choice is None:
                return None
            frontier, spans = choice
            able = self._checked(frontier, slots)
            if may_have_gangs(frontier.plan, spans[0]):
                gang = self.gangs.gather(choice, frontiers, able, may_widen=may_widen)
            else:
                resume = resume_point(frontier.plan, spans[0])
                slot = place(frontier.plan, frontier.id, spans, resume, self.gangs.open(able))
                if slot is not None and not is_gathering(frontier, spans[0], slot.name):
                    return self._packed(choice, passed_over.get(frontier.id, ()), slot, slots)
                gang = None
            if gang is None:
                gang = self.gangs.backfill(choice, able)
            if gang is not None:
                return _gathered(gang)
            passed_over.setdefault(frontier.id, set()).add((spans[0].node, spans[0].start))
        return None

    def _packed(
        self, choice: Choice, passed_over: Container[Place], slot: SlotDescription, slots: Candidates
    ) -> Placed:
        """With the paths that the slot trains together with the chosen one, where the plan's stages are packed."""
        (frontier, spans), opened = choice, choice[0].plan.opened
        assert opened is not None  # or no slot would have taken it
        if self._is_undecided(frontier):
            width = widest(frontier.plan, _with_trainer(slots.well, opened))
            return Placed(frontier, [spans[:1]], slot, is_pack=True, measure=width)
        is_alone = frontier.plan.nodes[spans[0].node].alone
        if is_alone or not (self._ports.packs and frontier.plan.packing):
            return Placed(frontier, [isolated(frontier.plan, spans)], slot, is_pack=False)
        if frontier.plan.is_isolated(spans[0].node, spans[0].start) or spans[0].node in frontier.plan.means:
            return Placed(frontier, [spans[:1]], slot, is_pack=True)
        well, free = (_with_trainer(some, opened) for some in (slots.well, slots.free))
        most, more = allowed(frontier, spans[0].study, well, free)
        lead = until_branch(frontier, choose_leader(frontier, spans, passed_over, most, slot))
        others = pack_members(frontier, lead, passed_over, more, slot)
        return Placed(frontier, until_filled(frontier, [lead, *others], passed_over, more), slot, is_pack=True)

    def _offered(self, slots: Candidates) -> list[Frontier]:
        """The plans whose trainer a slot has; where none has, it is said."""
        return [frontier for frontier in self._frontiers.usable() if self._is_offered(frontier, slots)]

    def _is_offered(self, frontier: Frontier, slots: Candidates) -> bool:
        opened, about = frontier.plan.opened, f"trainer of {frontier.id}"
        if opened is None:
            return False
        if any(has_trainer(slot, opened) for slot in slots.well):
            self._ports.problems.clear(about)
            return True
        self._ports.problems.report(about, f"plan {frontier.id} waits: {without_trainer(opened, slots.well)}")
        return False

    def _give(self, placed: Placed, sharers: int) -> bool:
        """Record that a slot has a chain, or a pack of them, and send it.

        False when another tick was faster: the next one will see it.
        """
        try:  # what happened since the paths were chosen may have been read meanwhile
            work = self._assignments(placed, sharers)
            self._record(placed, work)
        except SlotTaken:
            return True
        except (Refused, VersionConflict, PlanUnusable) as reason:
            logger.info("not assigned: %s", reason)
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
            how |= {"most_ranks": gathered.most} | gathered.gang.lent(self._ports.new_id)
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


class Choosing:
    """Goes by what a slot measured for the plan, or for another one of the same trainer; `Assignment` has it measured
    where that is not known."""

    def __init__(self, ports: Ports, frontiers: FrontierCache) -> None:
        self._ports, self._frontiers = ports, frontiers

    def look(self, well: Sequence[SlotDescription]) -> None:
        """Choose wherever that can be done now. well: the slots that are. Raises `DatabaseUnavailable`."""
        for frontier in self._frontiers.usable():
            if self._ports.packs and frontier.plan.packing is None and not frontier.plan.chains:
                self._choose(frontier, well)

    def _choose(self, frontier: Frontier, well: Sequence[SlotDescription]) -> None:
        stream, opened = frontier.id, frontier.plan.opened
        assert opened is not None  # or its packing would be 0
        able = [slot for slot in well if has_trainer(slot, opened)]
        try:
            with self._ports.plans.holding(stream, fresh=False) as plan:
                command = self._command(plan, able) if able else None
            if command is not None:
                self._ports.transact(stream, lambda plan: decide(plan, command))
                logger.info("packs of plan %s: %s", stream, command.reason)
                self._frontiers.refresh(stream, fresh=False)
        except (VersionConflict, PlanUnusable) as reason:
            logger.info("how wide the packs of plan %s are is left to the next tick: %s", stream, reason)

    def _command(self, plan: SearchPlan, able: Sequence[SlotDescription]) -> c.ChoosePacking | None:
        """None where it must be measured first, or as long as there are no trials."""
        most = widest(plan, len(able))
        if most == 1:
            return c.ChoosePacking(width=0, reason="trials are trained alone, since no slot has two of them at once")
        own = next(iter(plan.profiles.values()), None)
        profile = own or (self._on_record(plan, able, most) if most else None)
        if profile is not None:
            width, reason = chosen(plan, profile, len(able))
            return c.ChoosePacking(width=width, reason=reason, profile=None if own else profile)
        if plan.measurements >= MOST_MEASUREMENTS:
            why = f"trials are trained alone, since measuring packs came to no end {plan.measurements} times"
            return c.ChoosePacking(width=0, reason=why)
        return None

    def _on_record(self, plan: SearchPlan, able: Sequence[SlotDescription], most: int) -> PackingProfiled | None:
        """What another plan has measured on a device like those here, of all widths that come into question."""
        assert plan.opened is not None  # or no slot would be able
        profiles_by_device = packs_on_record(self._ports.records.log, plan.opened, batch_of(plan.nodes[plan.roots[0]]))
        profiles = (profiles_by_device[slot.device] for slot in able if slot.device in profiles_by_device)
        return next((profile for profile in profiles if covers(profile, most)), None)
