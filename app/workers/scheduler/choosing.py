"""Runs on: the tick's thread.

Chooses how wide the packs are of plans that were opened without a width, before any of their stages is trained.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.domain import commands as c
from app.domain.assignment import SlotDescription
from app.domain.decide import decide
from app.domain.events import PackingProfiled
from app.domain.search_plan import SearchPlan
from app.events.log import VersionConflict
from app.events.plans import PlanUnusable
from app.events.profiles import profiles_on_record
from app.scheduling.assignment import has_trainer
from app.scheduling.frontier import Frontier
from app.scheduling.packs import batch_of, chosen, covers, widest
from app.workers.scheduler.outlook import Outlook
from app.workers.scheduler.ports import Ports

logger = logging.getLogger(__name__)

MOST_MEASUREMENTS = 2
"""One that comes to no end may be an accident. After two the trials are trained alone: nobody waits forever."""


class Choosing:
    """Goes by what a slot measured for the plan, or for another one of the same trainer; `Assignment` has it measured
    where that is not known."""

    def __init__(self, ports: Ports, outlook: Outlook) -> None:
        self._ports, self._outlook = ports, outlook

    def look(self, well: Sequence[SlotDescription]) -> None:
        """Choose wherever that can be done now. well: the slots that are. Raises `DatabaseUnavailable`."""
        for frontier in self._outlook.frontiers():
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
                self._outlook.refresh(stream, fresh=False)
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
        found = profiles_on_record(self._ports.records.log, plan.opened, batch_of(plan.nodes[plan.roots[0]]))
        profiles = (found[slot.device] for slot in able if slot.device in found)
        return next((profile for profile in profiles if covers(profile, most)), None)
