"""The real scheduler on virtual slots in virtual time: rows and log in memory, a clock that jumps, no workers.

The events are the same as in a real log, so that a simulated plan can be analyzed in the same way, and the scheduler's
reaction to rare faults can be observed.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.search_plan import Node, SearchPlan, StoredSpec
from app.domain.terms import NodeId, PlanId, StudyId
from app.events import Plans, StoredEvent
from app.events.memory import MemoryRecords
from app.scheduling.costs import Costs
from app.scheduling.fair_share import POLICIES, Policy
from app.search.tuners.driver import TunerDriver, make_driver
from app.simulation.pace import NO_OVERHEADS, Fault, Faults, Overheads, Seconds, no_fault, one_second_a_step
from app.simulation.slots import VirtualSlot, drop_devices, drop_devices_of_event
from app.simulation.virtual_chain import VirtualChain, World
from app.workers.scheduler.fence import Fence
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.tick import Scheduler
from app.workers.slot.retry import Instant
from stagetree.limits import LIMITS, Limits

PLAN = PlanId("simulated")
EPOCH = 1e9
"""Unix seconds at virtual time 0."""

TICK_SECONDS = 5.0
"""The interval of ticks where studies take turns."""

Measure = Callable[[Node, int], e.Metrics]


class Unit(Costs):
    """Every step costs one second: durations are numbers of steps."""

    def refit(self, plan: SearchPlan) -> bool:
        return False

    def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
        return 1.0


def submission(study: StudyId, spec: Mapping[str, Any], packing: int | None = 0) -> c.SubmitStudy:
    """The submission of a study to the plan of its trainer. packing: of the plan."""
    stored = StoredSpec.from_json(dict(spec))
    opened = e.PlanOpened(
        trainer=stored.trainer,
        trainer_version="",
        trainer_args=dict(stored.trainer_args),
        seed=stored.seed,
        shards=stored.shards,
        packing=packing,
    )
    return c.SubmitStudy(plan=opened, study=study, spec=stored.json, at=0.0)


class Simulator:
    """Virtual slots that train a plan. `now` is in virtual seconds.

    keep_every: the steps between checkpoints inside a stage, which workers save if they cost little.
    keeps_branches: one is also saved at known branch points; implied by keep_every. overheads: the time that slots
    spend on anything but steps. turn_seconds: as in `Ports`. make_costs: the scheduler's estimate of steps; `Costs` to
    have it learn from durations, as a real one does. profile: the durations of steps in packs, which slots find when
    they measure; None for no packs. ranks: the same for gangs; None: k slots are k times as fast as one. watch: called
    with the number of events; an exception ends the simulation.
    """

    def __init__(
        self,
        *,
        slots: int,
        measure: Measure,
        policy: Policy = POLICIES["critical_path"],
        seconds: Seconds = one_second_a_step,
        faults: Faults = no_fault,
        keep_every: int | None = None,
        keeps_branches: bool = False,
        overheads: Overheads = NO_OVERHEADS,
        limits: Limits = LIMITS,
        turn_seconds: float | None = None,
        profile: e.PackingProfiled | None = None,
        ranks: e.RanksProfiled | None = None,
        make_costs: Callable[[], Costs] = Unit,
        watch: Callable[[int], None] = lambda events: None,
    ) -> None:
        self.now = self._look_begins = self._busy_until = 0.0
        self._records = MemoryRecords(lambda: EPOCH + self.now)
        self._log, self._plans = self._records.log, Plans(self._records.log)
        self._measure, self._seconds, self._faults, self._watch = measure, seconds, faults, watch
        self._due: list[tuple[float, int, Callable[[], bool]]] = []  # when, in which order, and what
        self._beats: list[tuple[float, int, VirtualChain]] = []  # when, in which order, and the chain with news then
        self._is_tick_due = self._is_look_due = False
        self._overheads, self._given, self._seen = overheads, 0, 0  # seen: how many events were looked at for news
        self._stages, self._order, chains, self._drivers = count(), count(), count(), dict[StudyId, TunerDriver]()
        self._ports = Ports(
            records=self._records,
            plans=self._plans,
            packs=profile is not None,
            policy=policy,
            publish=self._begin_chain,
            new_id=lambda: f"chain-{next(chains)}",
            lease_seconds=inf,
            intermediate_bytes=sys.maxsize if keep_every or keeps_branches else 0,
            clock=lambda: self.now,
            elapsed=lambda: self.now,
            make_driver=lambda study, spec: self._drivers.get(study) or make_driver(study, spec),
            make_costs=make_costs,
            notify=lambda chain, slot: self._slots[slot].look(),
            limits=limits,
            turn_seconds=turn_seconds,
            fence=Fence(is_strict=True),
        )
        self.scheduler = Scheduler(self._ports)
        world = self._world(keep_every, profile, ranks)
        self._slots = {name: VirtualSlot(name, world) for name in map("gpu{}".format, range(slots))}
        for slot in self._slots.values():
            slot.register({})

    def _world(self, keep_every: int | None, profile: e.PackingProfiled | None, ranks: e.RanksProfiled | None) -> World:
        """The world as slots see it."""
        return World(
            records=self._records,
            stream=PLAN,
            clock=lambda: Instant(self.now),
            later=self._later,
            pace=self._pace,
            measure=self._look_up_metrics,
            keep_every=keep_every,
            overheads=self._overheads,
            profile=profile,
            ranks=ranks,
            hear=lambda at, chain: heapq.heappush(self._beats, (at, next(self._order), chain)),
        )

    @property
    def plan(self) -> SearchPlan:
        return self._plans.get(PLAN)

    @property
    def events(self) -> list[e.Event]:
        return [recorded.event for recorded in self.log()]

    def log(self) -> list[StoredEvent]:
        """The events with their virtual times."""
        return self._log.read(PLAN)

    def give(self, command: c.Command) -> tuple[e.Event, ...]:
        """Decide a command, and record its events."""
        if isinstance(command, c.SubmitStudy):
            command = replace(command, spec=drop_devices(command.spec))
            self._equip(command.plan)
        recorded = self._ports.transact(PLAN, lambda plan: decide(plan, command, self._ports.limits))
        return tuple(each.event for each in recorded)

    def submit(self, study: StudyId, spec: Mapping[str, Any], packing: int | None = 0) -> None:
        """Submit a study to the plan of its trainer. packing: of the plan."""
        self.give(replace(submission(study, spec, packing), at=self.now))

    def take(self, events: Iterable[e.Event]) -> None:
        """Record events."""
        placed = [drop_devices_of_event(event) for event in events]
        for event in placed:
            if isinstance(event, e.PlanOpened):
                self._equip(event)
        self._log.append(PLAN, placed, expected=None, at=self.now)

    def _equip(self, opened: e.PlanOpened) -> None:
        """Give all slots the plan's trainer."""
        for slot in self._slots.values():
            slot.describe({opened.trainer: opened.trainer_version})

    def run(self) -> float:
        """Run until nothing is left to do; returns the virtual time."""
        while self.advance():
            self._watch(self._seen)
        return self.now

    def run_until(self, time: float) -> None:
        """Run until that time, even in the middle of stages."""
        while self.advance(time):
            pass
        self.now = max(self.now, time)

    def advance(self, until: float = inf) -> bool:
        """Tick if needed, and let the next thing happen on a slot; False if nothing is left to do.

        Nothing happens after `until`.
        """
        while True:
            if self._is_woken():
                self._look_soon()
            if self._happens(until):
                return True
            if self._log.version(PLAN) == self._seen:
                return False  # else the tick itself changed something, such as freeing a slot: tick again

    def _happens(self, until: float) -> bool:
        """Whether anything happened on a slot until then."""
        while self._due and self._due[0][0] <= until:
            at, _, do = heapq.heappop(self._due)
            before, self.now = self.now, at
            if do():
                self._plans.get(PLAN)  # readers hold the plan object and see the update
                return True
            self.now = before
        return False

    def set_tuner(self, study: StudyId, driver: TunerDriver) -> None:
        """Replace the tuner of a study."""
        self._drivers[study] = driver

    def _look_up_metrics(self, node: str, step: int) -> e.Metrics:
        with self._plans.holding(PLAN, fresh=False) as plan:
            return self._measure(plan.nodes[NodeId(node)], step)

    def _is_woken(self) -> bool:
        """Whether workers would notify the scheduler: there is a result or a checkpoint.

        If ticks take no time and no slot is idle, a saved state does not need a tick of its own: it would only update
        costs.
        """
        news = self._log.read(PLAN, after=self._seen)
        self._seen += len(news)
        if self._overheads.look and not news:
            return False  # the last tick has seen all events
        only_saved = all(isinstance(each.event, e.StageCompleted | e.CheckpointKept) for each in news)
        return not only_saved or self._overheads.look > 0 or any(slot.is_idle for slot in self._slots.values())

    def _look_soon(self) -> None:
        """Tick once the scheduler has finished its current tick."""
        if not self._overheads.look:
            self._tick()
        elif not self._is_look_due:
            self._is_look_due, self._look_begins = True, max(self.now, self._busy_until)
            self._later(self._look_begins + self._overheads.look, self._look_now)

    def _look_now(self) -> bool:
        self._is_look_due = False
        self._tick()
        return True

    def _tick(self) -> None:
        """Heartbeats first, which report the progress of the slots."""
        self._given, due = 0, list[tuple[float, int, VirtualChain]]()
        while self._beats and self._beats[0][0] <= self.now:
            due.append(heapq.heappop(self._beats))
        for at, _, chain in due:
            if chain.silent_until == at:
                chain.beat()
        self.scheduler.tick()
        if self._ports.turn_seconds is not None and not self._is_tick_due and self._due:
            self._is_tick_due = True
            self._later(self.now + TICK_SECONDS, self._periodic_tick)

    def _periodic_tick(self) -> bool:
        """Turns depend on the time, so the scheduler ticks even if nothing happens."""
        self._is_tick_due = False
        self._tick()
        return False

    def _begin_chain(self, chain: str, stages: int, slot: str) -> None:
        """Send the message that starts a chain. It arrives after a while; messages of one tick are sent in a row.

        Tuners take in what happens during a tick. A slot that becomes free during a tick gets a chain only in the next
        one, and until then the scheduler notices nothing else.
        """
        if not stages:
            return  # a lent slot has nothing to leave
        wait, self._given = self._overheads.claim + self._given * self._overheads.give, self._given + 1
        if self._slots[slot].free_since > self._look_begins and self._overheads.look:
            wait, self._busy_until = wait + self._overheads.look, self.now + self._overheads.look
        if wait:
            self._later(self.now + wait, lambda: self._deliver(chain, slot))
        else:
            self._deliver(chain, slot)

    def _deliver(self, chain: str, slot: str) -> bool:
        self._slots[slot].begin(chain)
        return True

    def _pace(self, stage: e.Stage, slot: str) -> tuple[float, Fault | None]:
        number = next(self._stages)
        return self._seconds(stage, number), self._faults(stage, number, slot)

    def _later(self, at: float, do: Callable[[], bool]) -> None:
        heapq.heappush(self._due, (at, next(self._order), do))
