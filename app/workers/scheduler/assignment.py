"""Gives the most urgent work to free slots. Which slot gets what is said in `app.scheduling.placement`."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.errors import Refused
from app.domain.events import Stage
from app.domain.ids import ChainId, PlanId
from app.domain.slots import Slot
from app.domain.stage_tree import Place
from app.events.log import VersionConflict
from app.events.plans import PlanUnusable
from app.events.rows.errors import SlotTaken
from app.scheduling.assignment import ChainAssignment, assign, resume_point
from app.scheduling.balance import EVEN, Balance
from app.scheduling.chains import stages_of
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import Candidates, place, without_trainer
from app.workers.scheduler.dispatch import Dispatch
from app.workers.scheduler.outlook import Outlook
from app.workers.scheduler.ports import Ports

logger = logging.getLogger(__name__)

MOST_PASSED_OVER = 100
"""How many places that no slot can take now are passed over, before a tick lets the rest wait as well."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Spans that a slot is to run in a row."""

    frontier: Frontier
    spans: Sequence[Span]
    slot: Slot


class Assignment:
    """Takes the most urgent path, gives it to a slot on record, and sends it; what cannot be placed waits."""

    def __init__(self, ports: Ports, outlook: Outlook, dispatch: Dispatch) -> None:
        self._ports, self._outlook, self._dispatch = ports, outlook, dispatch

    def assign(self, slots: Candidates, balance: Balance = EVEN) -> Candidates:
        """Give work to free slots, until one of both runs out; the slots as they are then.

        balance: what is due to each study. Raises `DatabaseUnavailable`.
        """
        frontiers = self._with_trainer(slots) if slots.free else []
        while slots.free and (placed := self._next(frontiers, slots, balance)) is not None:
            if not self._give(placed, len(slots.free)):
                break
            slots = Candidates(slots.well, [slot for slot in slots.free if slot is not placed.slot])
            self._outlook.refresh(placed.frontier.id, fresh=False)
        return slots

    def _next(self, frontiers: Sequence[Frontier], slots: Candidates, balance: Balance) -> Placed | None:
        """The most urgent path that a slot can take now."""
        passed_over: dict[PlanId, set[Place]] = {}
        for _ in range(MOST_PASSED_OVER):
            choice = self._ports.policy(frontiers, passed_over, balance)
            if choice is None:
                return None
            frontier, spans = choice
            slot = place(frontier.plan, frontier.id, spans, resume_point(frontier.plan, spans[0]), slots)
            if slot is not None:
                return Placed(frontier, spans, slot)
            passed_over.setdefault(frontier.id, set()).add((spans[0].node, spans[0].start))
        return None

    def _with_trainer(self, slots: Candidates) -> list[Frontier]:
        """The plans whose trainer a slot has; where none has, it is said."""
        offered = {offer for slot in slots.well for offer in slot.trainers.items()}
        return [frontier for frontier in self._outlook.frontiers() if self._is_offered(frontier, offered, slots)]

    def _is_offered(self, frontier: Frontier, offered: Container[tuple[str, str]], slots: Candidates) -> bool:
        opened, about = frontier.plan.opened, f"trainer of {frontier.id}"
        if opened is None:
            return False
        if (opened.trainer, opened.trainer_version) in offered:
            self._ports.problems.clear(about)
            return True
        if slots.well:
            self._ports.problems.report(about, f"plan {frontier.id} waits: {without_trainer(opened, slots.well)}")
        return False

    def _give(self, placed: Placed, sharers: int) -> bool:
        """Record that a slot has a chain, and send it. False when another tick was faster: the next one will see it."""
        chain, plan = self._ports.new_id(), placed.frontier.plan
        stages = stages_of(plan, placed.spans)
        budget = max(0, self._ports.intermediate_bytes - plan.intermediate_bytes) // sharers
        assignment = assign(placed.frontier, placed.spans, stages, budget)
        try:
            self._record(chain, placed, assignment, stages)
        except SlotTaken:
            return True
        except (Refused, VersionConflict, PlanUnusable) as reason:
            logger.info("not assigned: %s", reason)
            return False
        self._dispatch.send(chain, len(stages), placed.slot.name)
        return True

    def _record(self, chain: str, placed: Placed, assignment: ChainAssignment, stages: tuple[Stage, ...]) -> None:
        slot, progress = placed.slot.name, dict(placed.frontier.progress)
        command = c.AssignChain(
            chain=ChainId(chain), slot=slot, stages=stages, at=self._ports.clock(), progress=progress
        )
        stream, work, ttl = assignment.plan, assignment.to_json(), self._ports.lease_seconds
        self._ports.transact(
            stream,
            lambda plan: decide(plan, command),
            alongside=lambda rows: rows.chains.assign(chain, stream, slot, work, ttl),
            is_known=True,
        )
