"""One look at what happened, and the decisions that follow.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from logging import DEBUG, WARNING
from typing import Any

from app.events import DatabaseUnavailable
from app.outages import LostRace
from app.scheduling.packs import trials_on_a_slot
from app.scheduling.placement import Candidates
from app.workers.scheduler.assignment import Assignment
from app.workers.scheduler.cluster import Cluster
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports
from app.workers.scheduler.reaper import Reaper
from app.workers.scheduler.sharing import FlagSender, Sharing
from app.workers.scheduler.tuning import Tuning
from app.workers.scheduler.verification import VerificationScheduling
from app.workers.scheduler.work_choice import PackWidthChoice

logger = logging.getLogger(__name__)


class Scheduler:
    """`tick` looks once. The next tick does what this one could not."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._is_away = ports, False
        self._begin()

    def _begin(self) -> None:
        """Remember nothing: everything follows from the log and the rows."""
        ports, self._losses = self._ports, self._ports.plans.losses
        self._cluster = Cluster(ports)
        self._frontiers, self._dispatch = FrontierCache(ports), Dispatch(ports)
        self._reaper, self._tuning, self._flags = Reaper(ports, self._dispatch), Tuning(ports), FlagSender(ports)
        self._assignment = Assignment(ports, self._frontiers, self._dispatch)
        self._pack_width, self._sharing = PackWidthChoice(ports, self._frontiers), Sharing(ports)
        self._verification = VerificationScheduling(ports, self._frontiers, self._dispatch, self._assignment.gangs)
        self._idle, self._may_write = Candidates((), ()), True  # after the last tick

    def tick(self) -> bool:
        """Look, decide, and return whether the tick was completed.

        An outage of the database is logged once, and the next tick tries again.
        """
        try:
            self._ports.fence.begin_tick()
            if self._ports.plans.losses != self._losses:
                self._begin()
            self._tick()
            self._ports.show()  # a write: no worker can renew a lease in a read-only database
        except DatabaseUnavailable as problem:
            self._reaper.note_outage()
            self._cluster.note_outage()
            logger.log(DEBUG if self._is_away else WARNING, "the scheduler waits for the database: %s", problem)
            self._is_away = True
            return False
        except LostRace as lost:
            logger.info("the rest is left to the next tick: %s", lost)
            return False
        self._is_away = False
        return True

    def problems(self) -> Mapping[str, str]:
        """Why plans and studies are held up, in a sentence each, by name."""
        return {**self._ports.problems.all(), **self._ports.fence.problems()}

    def held_up_reasons(self) -> Mapping[str, str]:
        """The problems, except of work that only waits for slots."""
        return self._ports.fence.problems()

    def demand(self) -> Mapping[str, Any]:
        """After a tick: how many slots are busy, how many more would be, also by kind, and which are idle."""
        idle = [slot.name for slot in self._idle.free]
        busy = Counter(slot.kind for slot in self._idle.healthy) - Counter(slot.kind for slot in self._idle.free)
        wanting = self._tuning.studies_wanting_more()
        more = (
            self._sharing.count_wanted_slots(self._frontiers.usable(), wanting) if self._may_write else Counter[str]()
        )
        return {
            "busy": len(self._idle.healthy) - len(idle),
            "more": more.total(),
            "idle": idle,
            "busy_by_kind": dict(busy),
            "more_by_kind": {kind: slots for kind, slots in more.items() if slots},
        }

    def _tick(self) -> None:
        cluster = self._cluster
        self._cluster.look()
        if self._reaper.reap(cluster):  # its slots are free now
            self._cluster.look()
        self._dispatch.send_again(cluster.undelivered)
        self._frontiers.update(cluster.versions, cluster.live, cluster.changed_chains)
        self._tuning.forget(cluster.versions)
        self._verification.apply_results()
        room, able = max(1, len(cluster.slots)), cluster.candidates()
        self._tuning.slots, self._tuning.is_due = room, partial(self._verification.is_due, able)
        self._tune(room)
        self._pack_width.look(able.healthy)
        slots = self._limit_to_budget(able, len(cluster.live))
        waiting = able.free[len(slots.free) :]
        slots = self._verification.begin(slots)
        balance = self._sharing.look(self._frontiers.usable(), slots)
        slots = self._assignment.assign(slots, balance, may_widen=False)
        if slots.free:  # trials that share a stage leave slots idle: some more may have other work for them
            self._tune(2 * room)
            slots = self._verification.use_idle(self._assignment.assign(slots, balance))
        self._verification.make_room(slots, cluster.live)
        slots = Candidates(slots.healthy, [*slots.free, *waiting])
        self._idle, self._may_write = slots, not waiting
        self._sharing.make_room(self._frontiers.usable(), balance, cluster, slots)
        self._flags.send(self._frontiers.usable())

    def _limit_to_budget(self, slots: Candidates, live: int) -> Candidates:
        """The slots whose chains may write beside the live ones; the others wait until states are deleted."""
        plans = {str(frontier.id): frontier.plan for frontier in self._frontiers.usable()}
        most = self._ports.chain_quota(plans, live, len(slots.free))
        return Candidates(slots.healthy, slots.free[:most])

    def _tune(self, slots: int) -> None:
        """Keep as many trials active as this many slots can train."""
        for frontier in self._frontiers.usable():
            with self._ports.fence.guard(frontier.id, "asking its tuners"):
                lanes = trials_on_a_slot(frontier.plan) if self._ports.packs else 1
                is_asked = self._tuning.was_asked(frontier.id, frontier.plan.version, slots * lanes)
                if not is_asked:
                    self._tuning.tune(frontier.id, slots * lanes)
