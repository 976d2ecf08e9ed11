"""A simulated world: scheduler, workers and client of one installation, which are killed and come back.

Scheduler, slot, heartbeat, outbox, saver, notifier, claim, ownership and retention are the real ones. What trains is
the real model, in the worker's process. A database, a store and a broker stand for those that a network would lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StateConflict, StudyId, plan_id
from app.events.database import DatabaseUnavailable
from app.events.log import Idempotency, VersionConflict
from app.events.plans import Plans
from app.events.records import Write, transact
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
from stagetree.spec import StudySpec
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

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LEASE, HEARTBEAT, GRACE, TICK = 15.0, 1.0, 5.0, 1.0
RACE_SECONDS = 0.1
STEP = 1.0
"""Mean seconds of a step."""

LONGEST_STEP = 60.0
"""A step is not ended for a cancelled study, so it must end within the time in which all comes to rest."""

Json = dict[str, Any]


class Member(Process):
    """A process of this world."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.time)
        self._world, self.is_to_end, self.is_away_with_its_host = world, False, False
        self.on_end: Callable[[], None] = lambda: None
        self.fibers_of = Fibers(self)
        self.effects = Effects(self, world.faults)
        self.records = WorldRecords(world.database, self.effects)
        self.store = WorldStore(world.objects, self.effects)

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


def _host(name: str) -> int:
    """The number of the machine of a worker or scheduler."""
    number = int(name[-1])
    return number // 2 if name.startswith("worker") else number


class _Lock:
    """Of a slot on its machine, as `SlotLock`: who has it knows that whoever had it before is dead."""

    def __init__(self, slot: str) -> None:
        self.id = f"lock-of-{slot}"


@dataclass(frozen=True)
class Setting:
    """What a history is made in. budget: bytes for checkpoints. memory: bytes of recent states in a slot.

    faults_until: seconds after which nothing goes wrong any more. faults_share: of their rates, how often they happen.
    most_steps: what one fault may cost.
    gaps: seconds before each study is submitted. whims: what its user does with each: `wait`, `pause` or `cancel`.
    """

    slots: int = 1
    schedulers: int = 1
    budget: int | None = None
    memory: int = 0
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
        self.sources = {name: TrainerSource(TOY, "1") for name in ("toy", "packable")}
        self.submitted: dict[int, StudyId] = {}
        self.streams: dict[int, str] = {}
        self.members: dict[str, Member] = {}
        self.deaths = 0
        self._machine = Member("machine", self)
        self._owners: dict[str, Ownership] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._plans = Plans(self.database.records.log)
        for number in range(setting.slots):
            self._supervise(f"worker-gpu{number}", self._be_worker)
        for number in range(setting.schedulers):
            self._supervise(f"scheduler-{number}", self._be_scheduler)
        self._machine.fibers_of.spawn("client", self._be_client)

    # ------------------------------------------------------------------------------------------------ processes

    def _supervise(self, name: str, be: Callable[[Member], None]) -> None:
        def start() -> None:
            member = self.members[name] = Member(name, self)
            member.fibers_of.spawn("main", lambda: be(member))

        self._starts[name] = start
        start()

    def note_death(self, member: Member) -> None:
        """Another process comes in its place."""
        self.deaths += 1
        if not member.is_fork_alone:
            self._owners.pop(member.name, None)
        self.later(self.faults.seconds(120.0 if member.is_away_with_its_host else 20.0), self._starts[member.name])

    def kill_all(self) -> None:
        for member in list(self.members.values()):
            if not member.is_dead:
                member.kill()

    def kill_host(self, name: str) -> None:
        """All that run on the machine of that process, which is away for a while: two slots, and a scheduler."""
        for member in list(self.members.values()):
            if not member.is_dead and _host(member.name) == _host(name):
                member.is_away_with_its_host = True
                member.kill()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        def wait() -> None:
            self.time.wait(seconds)
            do()

        self._machine.fibers_of.spawn("later", wait)

    # ------------------------------------------------------------------------------------------------ a worker

    def _be_worker(self, me: Member) -> None:
        slot = me.name.partition("-")[2]
        messages = me.fibers_of.flag()
        me.on_end = messages.set
        self.broker.serve(slot, messages)
        notifier = self._notifier(me)
        limits = Limits(lease=LEASE, heartbeat=HEARTBEAT, grace=GRACE, strike=5.0, memory_bytes=self.setting.memory)
        given = SlotDependencies(
            records=me.records,  # type: ignore[arg-type]
            store=me.store,
            start=lambda: self._start_trainer(me),
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
        if made.run_stage(chain, index) and index + 1 < stages:
            try:
                self.broker.send(me.effects, slot, (chain, index + 1, stages))
            except ConnectionError:
                self.faults.tell(f"the message of stage {index + 1} could not be sent")

    def _ownership(self, name: str, slot: str) -> Ownership:
        """Another worker's, or another fork's of the same one."""
        if name not in self._owners:
            lock: Any = _Lock(slot)
            self._owners[name] = Ownership(
                slot, lock, lease_seconds=LEASE, heartbeat_seconds=HEARTBEAT, clock=self.time.clock
            )
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

    def _start_trainer(self, me: Member) -> Any:
        def strikes(name: str, about: str) -> bool:
            return self.faults.strikes(name, f"{me.name}, {about}")

        def script(process: InProcess, what: str, step: int) -> None:
            me.effects.moment(f"before {what}")
            if what in ("train", "train a pack"):
                slow = 40.0 if self.faults.strikes("step takes long", f"{me.name} at step {step}") else STEP
                until = self.time.now + min(self.time.chance.expovariate(1 / slow), LONGEST_STEP)
                while self.time.now < until and not process.is_broken:
                    me.wait(min(1.0, until - self.time.now))
            if process.is_broken:
                process.do("killed")
            if what in ("train", "save", "evaluate", "load") and strikes("trainer dies", f"{what}, {step}"):
                raise TrainerFailed("crash", "the process was ended by signal 9", step)
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

    # ------------------------------------------------------------------------------------------------ a client

    def _be_client(self) -> None:
        """Submits the studies, each until it knows that it was taken."""
        me = Member("client", self)
        for number, spec in enumerate(self.setting.studies):
            self.time.wait(self.setting.gaps[number])
            while number not in self.submitted:
                try:
                    self._submit(me, number, spec)
                except (DatabaseUnavailable, VersionConflict):
                    self.time.wait(1.0)
            if self.setting.whims and self.setting.whims[number] != "wait":
                me.fibers_of.spawn("user", lambda number=number: self._be_user(me, number))  # type: ignore[misc]

    def _be_user(self, me: Member, number: int) -> None:
        """Changes their mind after a while."""
        study = self.submitted[number]
        self.time.wait(float(self.time.chance.random()) * 60)
        if self.setting.whims[number] == "cancel":
            self._ask(me, number, c.CancelStudy(study=study, at=self.wall_clock()))
            return
        self._ask(me, number, c.PauseStudy(study=study))
        self.time.wait(float(self.time.chance.random()) * 60)
        self._ask(me, number, c.ResumeStudy(study=study))

    def _ask(self, me: Member, number: int, asked: c.Command) -> None:
        """Until it was taken, or there is nothing to ask any more."""
        self.faults.tell(f"asked: {asked}")
        write = Write(
            stream=self.streams[number],
            decide=lambda plan: decide(plan, asked),
            at=self.wall_clock(),
            idempotency=Idempotency(f"api:{number}:{type(asked).__name__}"),
        )
        while True:
            try:
                transact(me.records.log, Plans(me.records.log), write, pause=me.rest)
                return
            except StateConflict:
                return
            except (DatabaseUnavailable, VersionConflict):
                self.time.wait(1.0)

    def _submit(self, me: Member, number: int, spec: Json) -> None:
        checked, study = StudySpec.from_dict(spec), StudyId(f"{self.time.chance.getrandbits(32):08x}")
        args, version = dict(checked.trainer_args), self.sources[checked.trainer].version
        how: Json = {"determinism": checked.determinism, "packing": checked.lanes}
        opened = e.PlanOpened(
            trainer=checked.trainer, trainer_version=version, trainer_args=args, seed=checked.seed, **how
        )
        stream = plan_id(checked.trainer, version, args, checked.seed, **how)
        command = c.SubmitStudy(plan=opened, study=study, spec=checked.to_json(), at=self.wall_clock())
        write = Write(
            stream=stream,
            decide=lambda plan: decide(plan, command),
            at=self.wall_clock(),
            idempotency=Idempotency(f"api:{number}"),
        )
        recorded = transact(me.records.log, Plans(me.records.log), write, pause=me.rest)
        (taken,) = [each.event.study for each in recorded if isinstance(each.event, e.StudySubmitted)]
        self.streams[number], self.submitted[number] = stream, taken

    # ------------------------------------------------------------------------------------------------ how it stands

    def end(self) -> None:
        """All of it: what has a descriptor lets it go."""
        self.setting = Setting()
        self._starts = {name: lambda: None for name in self._starts}
        self.kill_all()
        self._machine.is_dead = True
        for fiber in self._machine.fibers:
            self.time.wake(fiber)
        self.time.run(self.time.now + 1.0)

    def plan(self, number: int) -> SearchPlan:
        """As the log has it."""
        return self._plans.get(self.streams[number])

    def study(self, number: int) -> Study:
        return self.plan(number).studies[self.submitted[number]]

    def is_over(self) -> bool:
        every = range(len(self.setting.studies))
        return all(number in self.submitted and self.study(number).is_final for number in every)
