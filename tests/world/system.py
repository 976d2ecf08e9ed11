"""A simulated world: schedulers, workers and APIs of one installation, which are killed and come back.

Scheduler, slot, heartbeat, outbox, saver, notifier, claim, ownership and retention are the real ones. What trains is
the real model, in the worker's process. A database, a store and a broker stand for those that a network would lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from app.domain import events as e
from app.domain.search_plan import SearchPlan, Study
from app.events.plans import Plans
from app.registry import TrainerSource
from app.scheduling.fair_share import POLICIES
from app.workers.ownership import Ownership
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.retention import Retention
from app.workers.scheduler.tick import Scheduler
from app.workers.slot.context import Limits, SlotDependencies
from app.workers.slot.slot import Slot
from app.workers.threads import Notifier, PeriodicThread, TickLoop
from stagetree.runtime.failures import TrainerFailed
from tests.workers.in_process import InProcess
from tests.world.fault_alphabet import (
    Effects,
    Faults,
    WorldBroker,
    WorldDatabase,
    WorldObjects,
    WorldRecords,
    WorldStore,
)
from tests.world.fibers import Fibers, Process, Time
from tests.world.trainer import WorldTrainer
from tests.world.users import Users

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LEASE, HEARTBEAT, GRACE, TICK = 15.0, 2.0, 5.0, 1.0
RACE_SECONDS = 0.1
STEP = 1.0
"""Mean seconds of a step."""

GAIN = 0.8
"""What each rank more adds to the speed of one."""

RANKS_DO = ("build", "train", "evaluate", "load")

LONGEST_STEP = 60.0
"""A step is not ended for a cancelled study, so it must end within the time in which all comes to rest."""

Json = dict[str, Any]


class Member(Process):
    """A process of this world."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.time)
        self._world, self.is_to_end, self.is_away_with_its_host, self.is_busy = world, False, False, False
        self.on_end: Callable[[], None] = lambda: None
        self.fibers_of = Fibers(self)
        self.effects = Effects(self, world.faults)
        self.records = WorldRecords(world.database, self.effects)
        has_copies = world.setting.copies and name.startswith("worker")
        self.store = WorldStore(world.objects, self.effects, world.host_of(name) if has_copies else None)

    def kill(self) -> None:
        super().kill()
        self._world.note_death(self)

    def kill_all(self) -> None:
        self._world.kill_all()

    def kill_host(self) -> None:
        self._world.kill_host(self.name)

    def ask_to_end(self) -> None:
        """As SIGTERM."""
        self.is_to_end = True
        self.on_end()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self._world.later(seconds, do)

    def wait(self, seconds: float) -> None:
        self.time.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Out of the way of others for about so long. The chance in `seconds` is not of this world."""
        self.time.wait(float(self.time.chance.expovariate(1 / RACE_SECONDS)))

    @property
    def is_at_rest(self) -> bool:
        """Alive, and with nothing under way."""
        return not self.is_dead and not self.is_busy and self.paused_until <= self.time.now


class _Lock:
    """Of a slot on its machine, as `SlotLock`: who has it knows that whoever had it before is dead."""

    def __init__(self, slot: str) -> None:
        self.id = f"lock-of-{slot}"


@dataclass(frozen=True)
class Setting:
    """What a history is made in. host: how many slots are on one machine. budget: bytes for checkpoints. memory: bytes
    of recent states in a slot. copies: whether machines have disks for copies of them.

    faults_until: seconds after which nothing goes wrong any more. faults_share: of their rates, how often they happen.
    most_steps: what one fault may cost.
    gaps: seconds before each study is submitted. whims: what its user does with each: `wait`, `pause` or `cancel`.
    """

    slots: int = 1
    host: int = 2
    schedulers: int = 1
    apis: int = 1
    budget: int | None = None
    memory: int = 0
    copies: bool = False
    proofs: bool = False
    policy: str = "critical_path"
    studies: tuple[Json, ...] = ()
    gaps: tuple[float, ...] = ()
    whims: tuple[str, ...] = ()
    faults_until: float = 0.0
    faults_share: float = 1.0
    most_steps: int = 0


class World:
    """One history. folder: for what trainers print."""

    def __init__(self, seed: int, setting: Setting, chosen: Sequence[str], folder: Path) -> None:
        self.setting, self.folder = setting, folder
        self.time = Time(Random(seed))
        self.faults = Faults(self.time, chosen, setting.faults_until, setting.faults_share)
        self.database, self.objects = WorldDatabase(self.time), WorldObjects(self.time)
        self.broker = WorldBroker(self.time)
        self.sources = {name: TrainerSource(TOY, "1") for name in ("toy", "packable", "sharded")}
        self.users = Users(self, self.sources)
        self.members: dict[str, Member] = {}
        self.deaths = self._coming = 0
        self._machine = Member("machine", self)
        self._owners: dict[str, Ownership] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._plans = Plans(self.database.records.log)
        for number in range(setting.slots):
            self._supervise(f"worker-gpu{number}", self._be_worker)
        for number in range(setting.schedulers):
            self._supervise(f"scheduler-{number}", self._be_scheduler)
        for number in range(setting.apis):
            self._supervise(f"api-{number}", self.users.doors.serve)
        self._client = Member("client", self)
        self._client.fibers_of.spawn("client", lambda: self.users.submit_all(self._client))

    # ------------------------------------------------------------------------------------------------ processes

    def _supervise(self, name: str, be: Callable[[Member], None]) -> None:
        def start() -> None:
            member = self.members[name] = Member(name, self)
            member.fibers_of.spawn("main", lambda: be(member))

        self._starts[name] = start
        start()

    def note_death(self, member: Member) -> None:
        """Another process comes in its place."""
        self.deaths += not member.name.startswith("api")
        if not member.is_fork_alone:
            self._owners.pop(member.name, None)
        self.later(self.faults.seconds(120.0 if member.is_away_with_its_host else 20.0), self._starts[member.name])

    def kill_all(self) -> None:
        for member in list(self.members.values()):
            if not member.is_dead:
                member.kill()

    def kill_host(self, name: str) -> None:
        """All that run on the machine of that process, which is away for a while."""
        for member in list(self.members.values()):
            if not member.is_dead and self.host_of(member.name) == self.host_of(name):
                member.is_away_with_its_host = True
                member.kill()

    def host_of(self, name: str) -> int:
        """The number of the machine of a process: an API and a scheduler of its number are there as well."""
        number = int(name[-1])
        return number // self.setting.host if name.startswith("worker") else number

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        def wait() -> None:
            self.time.wait(seconds)
            self._coming -= 1
            do()

        self._coming += 1
        self._machine.fibers_of.spawn("later", wait)

    # ------------------------------------------------------------------------------------------------ a worker

    def _be_worker(self, me: Member) -> None:
        slot = me.name.partition("-")[2]
        messages = me.fibers_of.flag()
        me.on_end = messages.set
        self.broker.serve(slot, messages)
        notifier = self._notifier(me)
        limits = Limits(
            lease=LEASE,
            heartbeat=HEARTBEAT,
            grace=GRACE,
            strike=5.0,
            memory_bytes=self.setting.memory,
            cached_bytes=0,
        )
        given = SlotDependencies(
            records=me.records,  # type: ignore[arg-type]
            store=me.store,
            start=lambda members=(): self._start_trainer(me, len(members) + 1),
            sources=lambda: self.sources,
            notify=notifier.notify,
            is_retiring=lambda: me.is_to_end,
            end=lambda why: me.ask_to_end(),
            logs=self.folder,
            clock=self.time.clock,  # type: ignore[arg-type]
            wall_clock=self.wall_clock,
            executor=me.fibers_of,
        )
        made = Slot(self._ownership(me.name, slot), "cpu", given, limits)
        made.start()
        while not me.is_to_end:
            message = self.broker.take(me.effects, slot)
            if message is not None:
                self._do_stage(me, made, slot, *message)
        made.close()
        notifier.close()
        me.kill()

    def _do_stage(self, me: Member, made: Slot, slot: str, chain: str, index: int, stages: int) -> None:
        me.is_busy = True
        is_complete = made.run_stage(chain, index)
        me.is_busy = False
        if is_complete and index + 1 < stages:
            try:
                self.broker.send(me.effects, slot, (chain, index + 1, stages))
            except ConnectionError:
                self.faults.tell(f"the message of stage {index + 1} could not be sent")

    def _ownership(self, name: str, slot: str) -> Ownership:
        """Another worker's, or another fork's of the same one."""
        if name not in self._owners:
            lock: Any = _Lock(slot)
            owner = Ownership(slot, lock, lease_seconds=LEASE, heartbeat_seconds=HEARTBEAT, clock=self.time.clock)
            owner.kind, owner.host = "core", f"host{self.host_of(name)}"
            self._owners[name] = owner
        else:
            self._owners[name].begin()
        return self._owners[name]

    def _notifier(self, me: Member) -> Notifier:
        def tell() -> None:
            try:
                self.broker.send(me.effects, "scheduler", ("tick",))
            except ConnectionError:
                self.faults.tell("the scheduler could not be told")

        return Notifier(tell, me.fibers_of)

    def _start_trainer(self, me: Member, ranks: int) -> Any:
        def strikes(name: str, about: str) -> bool:
            return self.faults.strikes(name, f"{me.name}, {about}")

        def script(process: InProcess, what: str, step: int) -> None:
            me.effects.moment(f"before {what}")
            if what in ("train", "train a pack"):
                slow = 40.0 if self.faults.strikes("step takes long", f"{me.name} at step {step}") else STEP
                seconds = min(self.time.chance.expovariate(1 / slow), LONGEST_STEP)
                until = self.time.now + seconds / (1 + GAIN * (ranks - 1))
                while self.time.now < until and not process.is_broken:
                    me.wait(min(1.0, until - self.time.now))
            if process.is_broken:
                process.do("killed")
            if what in ("train", "save", "evaluate", "load") and strikes("trainer dies", f"{what}, {step}"):
                raise TrainerFailed("crash", "the process was ended by signal 9", step)
            if ranks > 1 and what in RANKS_DO and strikes("rank dies", f"{what}, {step}"):
                raise TrainerFailed("rank", "another rank was lost", step)
            if what == "train a pack" and strikes("pack dies", ""):
                raise TrainerFailed("crash", "the process was ended by signal 9", step)
            if what == "build beside others" and strikes("no room beside others", ""):
                raise TrainerFailed("out_of_memory", "there is too little memory", step)

        def fails(lanes: Sequence[int]) -> dict[int, TrainerFailed]:
            if len(lanes) == 1 or not strikes("lane fails", f"lanes {lanes}"):
                return {}
            return {self.time.chance.choice(lanes): TrainerFailed("exception", "ValueError: it failed", signature="it")}

        return WorldTrainer(script, fails)

    # ------------------------------------------------------------------------------------------------ a scheduler

    def _be_scheduler(self, me: Member) -> None:
        messages = me.fibers_of.flag()
        self.broker.serve("scheduler", messages)
        deleting = Retention(
            me.records,  # type: ignore[arg-type]
            Plans(me.records.log, clock=self.time.clock),
            me.store,
            self.setting.budget,
            self.wall_clock,
            pause=me.rest,
        )
        ports = Ports(
            records=me.records,  # type: ignore[arg-type]
            plans=Plans(me.records.log, clock=self.time.clock),
            policy=POLICIES[self.setting.policy],
            publish=lambda chain, stages, slot: self.broker.send(me.effects, slot, (chain, 0, stages)),
            new_id=lambda: f"{self.time.chance.getrandbits(128):032x}",
            lease_seconds=LEASE,
            intermediate_bytes=2**20,
            clock=self.wall_clock,
            elapsed=self.time.clock,
            pause=me.rest,
            chains_that_fit=deleting.chains_that_fit,
            proofs=self.setting.proofs,
        )
        scheduler = Scheduler(ports)
        retention = PeriodicThread("retention", lambda: deleting.look().is_done, TICK, rest=0.5, executor=me.fibers_of)

        def look() -> None:
            scheduler.tick()
            retention.wake()

        ticking = TickLoop(look, TICK, clock=self.time.clock, executor=me.fibers_of)
        ticking.start()
        retention.start()
        while True:
            if self.broker.take(me.effects, "scheduler") is not None:
                ticking.tick()

    def wall_clock(self) -> float:
        return 1_000_000.0 + self.time.now

    # ------------------------------------------------------------------------------------------------ how it stands

    def end(self) -> None:
        """All of it: what has a descriptor lets it go."""
        self.setting = Setting()
        self._starts = {name: lambda: None for name in self._starts}
        self.kill_all()
        for process in (self._machine, self._client):
            process.is_dead = True
            for fiber in process.fibers:
                self.time.wake(fiber)
        self.time.run(self.time.now + 1.0)

    def plan(self, number: int) -> SearchPlan:
        """As the log has it."""
        return self._plans.get(self.users.streams[number])

    def study(self, number: int) -> Study:
        return self.plan(number).studies[self.users.submitted[number]]

    def is_at_rest(self) -> bool:
        """Whether nothing is under way, or known to come: no chain, no process that stands still, no late message."""
        with self.database.records.read() as rows:
            is_busy = bool(rows.chains.live()) or len(rows.slots.all()) < self.setting.slots
        return not is_busy and not self._coming and all(member.is_at_rest for member in self.members.values())

    def gangs(self) -> int:
        """How many chains had more than one slot."""
        log = self.database.records.log
        events = (each.event for stream in log.versions() for each in log.read(stream))
        return sum(isinstance(event, e.ChainAssigned) and bool(event.members) for event in events)

    def is_over(self) -> bool:
        every = range(len(self.setting.studies))
        return all(number in self.users.submitted and self.study(number).is_final for number in every)
