"""The real scheduler on virtual slots and in virtual time: rows and log in memory, a clock that jumps, no workers.

What a study would cost is found by running it here. Events are the same as in the log, so a simulated plan can be
looked at with the same eyes; and what the scheduler does when something goes wrong is seen, however seldom it does.
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
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId, PlanId, StudyId
from app.events import Plans, StoredEvent
from app.events.memory import MemoryRecords
from app.scheduling.costs import Costs
from app.scheduling.fair_share import POLICIES, Policy
from app.search.tuners.driver import TunerDriver, make_driver
from app.simulation.pace import NO_OVERHEADS, Fault, Faults, Overheads, Seconds, no_fault, one_second_a_step
from app.simulation.slots import VirtualSlot, anywhere, placed_anywhere
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
"""Where studies take turns, the scheduler looks at least so often."""

Measure = Callable[[Node, int], e.Metrics]


class Unit(Costs):
    """Every step costs one second, forever: durations are numbers of steps."""

    def refit(self, plan: SearchPlan) -> bool:
        return False

    def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
        return 1.0


class Simulator:
    """Virtual slots that train a plan. `now`: in virtual seconds.

    keep_every: inside a stage, a checkpoint is kept after each so many steps, as workers do where it costs little.
    keeps_branches: another is kept where known trials would branch off, which follows from keep_every.
    overheads: what a slot spends on other things than steps. turn_seconds: as in `Ports`. make_costs: what steps are
    taken to cost; `Costs` where the scheduler is to learn that from how long they took, as a real one does. profile:
    how long steps take in packs, which slots find when they measure; None: slots train no packs. ranks: the same of
    gangs; None: k slots are k times as fast as one.
    watch: told how many events there are now; what it raises ends the simulation.
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
        """What the slots see of it."""
        return World(
            records=self._records,
            stream=PLAN,
            clock=lambda: Instant(self.now),
            later=self._later,
            pace=self._pace,
            measure=self._measured,
            keep_every=keep_every,
            overheads=self._overheads,
            profile=profile,
            ranks=ranks,
            hear=lambda at, chain: heapq.heappush(self._beats, (at, next(self._order), chain)),
        )

    @property
    def plan(self) -> SearchPlan:
        """The plan as of now."""
        return self._plans.get(PLAN)

    @property
    def events(self) -> list[e.Event]:
        """Everything that was decided or happened."""
        return [recorded.event for recorded in self.log()]

    def log(self) -> list[StoredEvent]:
        """The same, each event with the virtual time of it."""
        return self._log.read(PLAN)

    def give(self, command: c.Command) -> tuple[e.Event, ...]:
        """Decide a command and take in what follows."""
        if isinstance(command, c.SubmitStudy):
            command = replace(command, spec=anywhere(command.spec))
            self._equip(command.plan)
        recorded = self._ports.transact(PLAN, lambda plan: decide(plan, command, self._ports.limits))
        return tuple(each.event for each in recorded)

    def submit(self, study: StudyId, spec: Mapping[str, Any], packing: int | None = 0) -> None:
        """A study file, on the plan of its trainer. packing: as of a plan."""
        same = {"trainer_args": spec.get("trainer_args", {}), "seed": spec.get("seed", 0)}
        same |= {"shards": spec.get("shards", 0)}
        opened = e.PlanOpened(trainer=spec["trainer"], trainer_version="", packing=packing, **same)
        self.give(c.SubmitStudy(plan=opened, study=study, spec=dict(spec), at=self.now))

    def take(self, events: Iterable[e.Event]) -> None:
        """Take in events."""
        placed = [placed_anywhere(event) for event in events]
        for event in placed:
            if isinstance(event, e.PlanOpened):
                self._equip(event)
        self._log.append(PLAN, placed, expected=None, at=self.now)

    def _equip(self, opened: e.PlanOpened) -> None:
        """The slots have the trainer of the plan."""
        for slot in self._slots.values():
            slot.describe({opened.trainer: opened.trainer_version})

    def run(self) -> float:
        """Until nothing is left to do; the virtual time that it took."""
        while self.advance():
            self._watch(self._seen)
        return self.now

    def run_until(self, time: float) -> None:
        """Until that time, whatever is under way then."""
        while self.advance(time):
            pass
        self.now = max(self.now, time)

    def advance(self, until: float = inf) -> bool:
        """Look as the scheduler does, and let the next thing happen on a slot; False when nothing is left to do.

        Nothing happens that is later than `until`.
        """
        while True:
            if self._is_woken():
                self._look_soon()
            if self._happens(until):
                return True
            if self._log.version(PLAN) == self._seen:
                return False  # what a look itself has changed, such as a slot that is free again, asks for another one

    def _happens(self, until: float) -> bool:
        """Let the next thing happen on a slot, if anything does until then."""
        while self._due and self._due[0][0] <= until:
            at, _, do = heapq.heappop(self._due)
            before, self.now = self.now, at
            if do():
                self._plans.get(PLAN)  # whoever holds the plan sees what happened
                return True
            self.now = before
        return False

    def set_tuner(self, study: StudyId, driver: TunerDriver) -> None:
        """Let this driver decide for a study, instead of the one that its study file asks for."""
        self._drivers[study] = driver

    def _measured(self, node: str, step: int) -> e.Metrics:
        with self._plans.holding(PLAN, fresh=False) as plan:
            return self._measure(plan.nodes[NodeId(node)], step)

    def _is_woken(self) -> bool:
        """Whether workers would tell the scheduler that something happened: a result or a checkpoint is there.

        Where a look takes no time, that a state is kept is left to the next one, as long as no slot is idle: all that
        would come of it is what steps are taken to cost.
        """
        news = self._log.read(PLAN, after=self._seen)
        self._seen += len(news)
        if self._overheads.look and not news:
            return False  # it has looked since
        only_saved = all(isinstance(each.event, e.StageCompleted | e.CheckpointKept) for each in news)
        return not only_saved or self._overheads.look > 0 or any(slot.is_idle for slot in self._slots.values())

    def _look_soon(self) -> None:
        """The scheduler hears that something happened, and looks when it has done with what it is at."""
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
        """The heartbeats of the slots say how far they are."""
        self._given, due = 0, list[tuple[float, int, VirtualChain]]()
        while self._beats and self._beats[0][0] <= self.now:
            due.append(heapq.heappop(self._beats))
        for at, _, chain in due:
            if chain.silent_until == at:
                chain.beat()
        self.scheduler.tick()
        if self._ports.turn_seconds is not None and not self._is_tick_due and self._due:
            self._is_tick_due = True
            self._later(self.now + TICK_SECONDS, self._tick_by_itself)

    def _tick_by_itself(self) -> bool:
        """Studies take turns by the time that has passed: the scheduler looks though nothing happens."""
        self._is_tick_due = False
        self._tick()
        return False

    def _begin_chain(self, chain: str, stages: int, slot: str) -> None:
        """The message that starts a chain, which arrives after a while; those of one look are sent in a row.

        What came while the scheduler looked is taken in by the tuners; but a slot that was free only then is given
        nothing before the look after this one, during which the scheduler hears nothing else.
        """
        if not stages:
            return  # a slot that is lent has nothing to leave
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
