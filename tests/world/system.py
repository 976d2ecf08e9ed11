"""A simulated world: schedulers, workers and APIs of one installation, which are killed and come back.

Scheduler, slot, heartbeat, outbox, saver, notifier, claim, ownership and retention are the real ones. What trains is
the real model, in the worker's process. A database, a store and a broker simulate the ones on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from app.domain import events as e
from app.domain.search_plan import SearchPlan, Study
from app.events.plans import Plans
from app.events.rows import SlotTaken
from app.outages import DatabaseUnavailable, LostRace
from app.registry import TrainerSource
from app.scheduling.fair_share import POLICIES
from app.workers.ownership import Ownership
from app.workers.scheduler.fence import Fence
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.retention import Retention
from app.workers.scheduler.tick import Scheduler
from app.workers.slot.context import Limits, SlotDependencies
from app.workers.slot.slot import Slot
from app.workers.threads import Notifier, PeriodicThread, TickLoop
from tests.world.archivist import Archivist
from tests.world.fault_alphabet import Faults
from tests.world.fibers import Time
from tests.world.members import Lock, Member
from tests.world.objects import WorldObjects
from tests.world.servers import WorldBroker, WorldDatabase
from tests.world.settings import Setting
from tests.world.trainer import start_trainer
from tests.world.users import Users

TWIN = "twin"
"""In the name of a worker of a slot that another machine has as well."""

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LEASE, HEARTBEAT, GRACE, TICK = 15.0, 2.0, 5.0, 1.0
LOOK_SECONDS = 0.5


def slot_of(worker: str) -> str:
    return worker.rpartition("-")[2]


class World:
    """One history. folder: for what trainers print."""

    def __init__(self, seed: int, setting: Setting, chosen: Sequence[str], folder: Path) -> None:
        self.setting, self.folder = setting, folder
        self.time = Time(Random(seed))
        self.faults = Faults(self.time, chosen, setting.faults_until, setting.faults_share)
        self.database = WorldDatabase(self.time, folder / "world.db" if setting.archives else None)
        self.objects = WorldObjects(self.time)
        self.broker = WorldBroker(self.time)
        self.sources = {name: TrainerSource(TOY, "1") for name in ("toy", "packable", "sharded")}
        self.users = Users(self, self.sources)
        self.members: dict[str, Member] = {}
        self.deaths = self.gangs = self._coming = 0
        self.noticed_losses = 0  # by processes
        self.stolen = 0  # slots that a worker on another machine could take
        self.lost_times: list[tuple[float, float]] = []  # in which a fact may be lost, or a lost one be relied on
        self._machine = Member("machine", self)
        self._owners: dict[str, Ownership] = {}
        self._starts: dict[str, Callable[[], None]] = {}
        self._plans, self._read_at = Plans(self.database.records.log), dict[str, int]()
        for number in range(setting.slots):
            self._supervise(f"worker-gpu{number}", self._be_worker)
        for number in range(setting.schedulers):
            self._supervise(f"scheduler-{number}", self._be_scheduler)
        for number in range(setting.apis):
            self._supervise(f"api-{number}", self.users.doors.serve)
        self._client = Member("client", self)
        self._client.fibers_of.spawn("client", lambda: self.users.submit_all(self._client))
        self.archivist = Archivist(self)
        self._client.fibers_of.spawn("archivist", lambda: self.archivist.work(self._client))

    # ------------------------------------------------------------------------------------------------ processes

    def _supervise(self, name: str, be: Callable[[Member], None]) -> None:
        def start() -> None:
            member = self.members[name] = Member(name, self)
            member.fibers_of.spawn("main", lambda: be(member))

        self._starts[name] = start
        start()

    def note_death(self, member: Member) -> None:
        """Another process replaces it."""
        self.deaths += not (member.is_refused or member.name.startswith("api"))
        if not member.is_fork_alone:
            self._owners.pop(member.name, None)
        seconds = self.faults.seconds(120.0 if member.is_away_with_its_host else 20.0)
        self.later(seconds, lambda: self._starts[member.name]())

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

    def begin_twin(self, member: Member, seconds: float) -> None:
        """A worker of the same slot on another machine, which its user ends after `seconds`."""
        name = f"worker-{TWIN}-{slot_of(member.name)}"
        if name not in self.members:
            self._supervise(name, self._be_worker)
            self.later(seconds, lambda: self._end_twin(name))

    def end_twins(self) -> None:
        for name in [name for name in self.members if TWIN in name]:
            self._end_twin(name)

    def _end_twin(self, name: str) -> None:
        """It is gone once it has ended."""
        if name in self.members:
            self._starts[name] = lambda: self.members.pop(name, None)  # type: ignore[assignment]
            self.members[name].ask_to_end()

    def lose_commits(self, seconds: float) -> None:
        """The commits of `seconds` do not reach the replica, which then replaces the database."""
        begin = self.time.now

        def fail_over() -> None:
            lost = self.database.lost
            self.database.fail_over()
            self.faults.tell(f"the database has lost {self.database.lost - lost} events")
            self.database.leave("", self.faults.seconds(20.0))
            self.lost_times.append((begin, self.time.now + LEASE))
            self._plans, self._read_at = Plans(self.database.records.log), {}

        if self.database.fall_behind():
            self.later(seconds, fail_over)

    def host_of(self, name: str) -> int:
        """The number of the machine of a process: an API and a scheduler of its number are there as well."""
        number = int(name[-1])
        if TWIN in name:
            return -1 - number
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
        slot, owner = slot_of(me.name), self._ownership(me.name)
        if not self._await_free(me, owner):
            me.is_refused = True
            me.kill()
            return
        self.stolen += TWIN in me.name
        messages = me.fibers_of.flag()
        me.on_end = messages.set
        self.broker.serve(me.name, slot, messages)
        notifier = self._notifier(me)
        limits = Limits(
            lease=LEASE, heartbeat=HEARTBEAT, grace=GRACE, strike=5.0, memory_bytes=self.setting.memory, cached_bytes=0
        )
        given = SlotDependencies(
            records=me.records,  # type: ignore[arg-type]
            store=me.store,
            start=lambda members=(): start_trainer(me, len(members) + 1),
            sources=lambda: self.sources,
            notify=notifier.notify,
            send_next=lambda: self._send_next(me, slot, beside="message"),
            is_retiring=lambda: me.is_to_end,
            end=lambda why: me.ask_to_end(),
            logs=self.folder,
            clock=self.time.clock,  # type: ignore[arg-type]
            wall_clock=self.wall_clock,
            executor=me.fibers_of,
        )
        made = Slot(owner, "cpu", given, limits)
        made.start()
        while not me.is_to_end:
            message = self.broker.take(me.effects, slot)
            if message is not None:
                self._do_stage(me, made, slot, *message)
        made.close()
        notifier.close()
        me.kill()

    def _await_free(self, me: Member, owner: Ownership) -> bool:
        """As `app.workers.tasks` does: False if another worker has the slot."""
        while not me.is_to_end:
            try:
                with me.records.read() as rows:
                    if owner.is_free(rows):
                        return True
            except SlotTaken:
                return False
            except (DatabaseUnavailable, LostRace):
                return True
            self.time.wait(LOOK_SECONDS)
        return False

    def _do_stage(self, me: Member, made: Slot, slot: str, chain: str, index: int, stages: int) -> None:
        me.is_busy = True
        if not stages:
            made.run_rank(chain)
            me.is_busy = False
            return
        me.following = (chain, index + 1, stages) if index + 1 < stages else None
        is_complete = made.run_stage(chain, index)
        me.is_busy = False
        if is_complete:
            self._send_next(me, slot)

    def _send_next(self, me: Member, slot: str, beside: str = "") -> None:
        """Send what follows the message that is served, once. beside: the name of a fiber that does so."""
        message, me.following = me.following, None
        if message is None:
            return

        def send() -> None:
            try:
                self.broker.send(me.effects, slot, message)
            except ConnectionError:
                self.faults.tell(f"the message of stage {message[1]} could not be sent")

        me.fibers_of.spawn(beside, send) if beside else send()

    def _ownership(self, name: str) -> Ownership:
        """Another worker's, or another fork's of the same one."""
        if name not in self._owners:
            lock: Any = Lock(name)
            slot = slot_of(name)
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
                self.faults.tell("the scheduler could not be woken")

        return Notifier(tell, me.fibers_of)

    # ------------------------------------------------------------------------------------------------ a scheduler

    def _be_scheduler(self, me: Member) -> None:
        messages = me.fibers_of.flag()
        self.broker.serve(me.name, "scheduler", messages)
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
            chain_quota=deleting.chain_quota,
            proofs=self.setting.proofs,
            fence=Fence(is_strict=True),
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
        """Close all parts with descriptors."""
        self.gangs = self._gangs()
        self.setting = Setting()
        self._starts = {name: lambda: None for name in self._starts}
        self.kill_all()
        for process in (self._machine, self._client):
            process.is_dead = True
            for fiber in process.fibers:
                self.time.wake(fiber)
        self.time.run(self.time.now + 1.0)
        self.database.records.close()

    def plan(self, number: int) -> SearchPlan:
        """The plan of the log. It is needed all the time, and read after each write."""
        stream, writes = self.users.streams[number], self.database.writes
        is_known = self._read_at.get(stream) == writes
        with self._plans.holding(stream, fresh=not is_known) as plan:
            self._read_at[stream] = writes
            return plan

    def study(self, number: int) -> Study:
        return self.plan(number).studies[self.users.submitted[number]]

    def is_at_rest(self) -> bool:
        """Whether nothing is under way, or known to come: no chain, no process that stands still, no late message."""
        with self.database.records.read() as rows:
            is_busy = bool(rows.chains.live()) or len(rows.slots.all()) < self.setting.slots
        return not is_busy and not self._coming and all(member.is_at_rest for member in self.members.values())

    def _gangs(self) -> int:
        """How many chains had more than one slot."""
        log = self.database.records.log
        events = (each.event for stream in log.versions() for each in log.read(stream))
        return sum(isinstance(event, e.ChainAssigned) and bool(event.members) for event in events)

    def is_over(self) -> bool:
        return self.archivist.is_done and self.users.are_content() and self.has_ended()

    def has_ended(self) -> bool:
        """Whether all studies have ended, by the current plan: an average reopens one."""
        every = range(len(self.setting.studies))
        return all(number in self.users.submitted and self.study(number).is_final for number in every)
