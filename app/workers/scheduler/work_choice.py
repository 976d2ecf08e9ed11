"""Chooses the width of packs for a plan that was opened without one, before any of its stages is trained.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.events import PackingProfiled
from app.domain.search_plan import SearchPlan
from app.domain.slots import SlotDescription
from app.events import packs_on_record
from app.scheduling.frontier import Frontier
from app.scheduling.placement import has_trainer
from app.scheduling.widths import batch_of, choose_width, covers, widest
from app.workers.scheduler.gangs import MAX_MEASUREMENTS
from app.workers.scheduler.ports import FrontierCache, Ports

logger = logging.getLogger(__name__)


class PackWidthChoice:
    """Uses measurements of the plan, or of another plan of the same trainer. If there are none, `Assignment` has them
    made.
    """

    def __init__(self, ports: Ports, frontiers: FrontierCache) -> None:
        self._ports, self._frontiers = ports, frontiers

    def look(self, well: Sequence[SlotDescription]) -> None:
        """Choose for each plan that is ready for it. well: the healthy slots. Raises `DatabaseUnavailable`."""
        for frontier in self._frontiers.usable():
            with self._ports.fence.guard(frontier.id, "choosing how wide its packs are"):
                if self._ports.packs and frontier.plan.packing is None and not frontier.plan.chains:
                    self._choose(frontier, well)

    def _choose(self, frontier: Frontier, well: Sequence[SlotDescription]) -> None:
        stream, opened = frontier.id, frontier.plan.opened
        assert opened is not None  # or its packing would be 0
        able = [slot for slot in well if has_trainer(slot, opened)]
        with self._ports.plans.holding(stream, fresh=False) as plan:
            command = self._command(plan, able) if able else None
        if command is not None:
            self._ports.transact(stream, lambda plan: decide(plan, command))
            logger.info("packs of plan %s: %s", stream, command.reason)
            self._frontiers.refresh(stream, fresh=False)

    def _command(self, plan: SearchPlan, able: Sequence[SlotDescription]) -> c.ChoosePacking | None:
        """None if it must be measured first, or while there are no trials."""
        most = widest(plan, len(able))
        if most == 1:
            return c.ChoosePacking(width=0, reason="trials are trained alone, since no slot has two of them at once")
        own = next(iter(plan.profiles.values()), None)
        profile = own or (self._recorded_profile(plan, able, most) if most else None)
        if profile is not None:
            width, reason = choose_width(plan, profile, len(able))
            return c.ChoosePacking(width=width, reason=reason, profile=None if own else profile)
        if plan.measurements >= MAX_MEASUREMENTS:
            why = f"trials are trained alone, since measuring packs came to no end {plan.measurements} times"
            return c.ChoosePacking(width=0, reason=why)
        return None

    def _recorded_profile(self, plan: SearchPlan, able: Sequence[SlotDescription], most: int) -> PackingProfiled | None:
        """Another plan's measurement on a device like one of these, if it covers all possible widths."""
        assert plan.opened is not None  # or no slot would be able
        profiles_by_device = packs_on_record(self._ports.records.log, plan.opened, batch_of(plan.nodes[plan.roots[0]]))
        profiles = (profiles_by_device[slot.device] for slot in able if slot.device in profiles_by_device)
        return next((profile for profile in profiles if covers(profile, most)), None)
