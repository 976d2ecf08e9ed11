"""A scheduler and slots in one process, with a broker that is a list: faults happen exactly where a test wants them.

Records, outbox, saver and heartbeat are the real ones. What trains is the real model, in this process; time only passes
where somebody waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import uuid4

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import StudyId, plan_id
from app.domain.search_plan import SearchPlan, Study
from app.events.database import Database, DatabaseUnavailable
from app.events.log import Conflict
from app.events.records import SqlRecords
from app.events.rows import Rows, SlotTaken
from app.events.tables import ChainRow, SlotRow
from app.events.transact import Plans, transact
from app.registry import TrainerSource
from app.scheduling.policies import POLICIES
from app.workers.slot.object_store import LocalStore
from app.workers.slot.slot import Limits, Slot, Surroundings
from app.workers.slot.trainer_host import Executor
from app.workers.state import State
from app.workers.tick import Ticker
from app.workers.trainer_process import TrainedTo, TrainerKilled
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import Model
from stagetree.runtime.state_format import read
from stagetree.runtime.timeline import Timeline
from stagetree.spec import StudySpec

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LEASE = 60.0
SETTLE_SECONDS = 60.0
Json = dict[str, Any]


class Clock:
    """Of everybody, databases included. It goes on when somebody waits, and when a test says so."""

    def __init__(self) -> None:
        self._now, self._lock = 1_000_000.0, RLock()
        self.waits = 0
        self.on_wait: Callable[[int], None] = lambda waits: None

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        with self._lock:
            self.waits += 1
            self._now += seconds
            self.on_wait(self.waits)


class Faults:
    """What goes wrong, and when: `before[...]` is called once, before a fact of that type is recorded."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.away_until = 0.0
        self.before: dict[type, Callable[[], None]] = {}
        self.lost_answers = self.lost_races = self.refusals = 0
        self.error: Callable[[], Exception] = lambda: DatabaseUnavailable("The database is away.")

    def away_for(self, seconds: float) -> None:
        self.away_until = self.clock.now() + seconds

    def check(self) -> None:
        if self.clock.now() < self.away_until:
            self.refusals += 1
            raise self.error()

    def announce(self, facts: Iterable[e.Event]) -> None:
        for fact in facts:
            if (hook := self.before.pop(type(fact), None)) is not None:
                hook()


class FaultyLog:
    def __init__(self, log: Any, faults: Faults) -> None:
        self._log, self._faults = log, faults

    def append(self, stream: str, events: Any, **more: Any) -> Any:
        self._faults.announce(events)
        self._faults.check()
        if self._faults.lost_races:
            self._faults.lost_races -= 1
            raise Conflict("The transaction lost against another one.")
        recorded = self._log.append(stream, events, **more)
        if self._faults.lost_answers:
            self._faults.lost_answers -= 1
            raise DatabaseUnavailable("The connection was lost while the commit was under way.")
        return recorded

    def __getattr__(self, name: str) -> Any:
        self._faults.check()
        return getattr(self._log, name)


class FaultyRecords:
    """As a slot sees the database."""

    def __init__(self, records: SqlRecords, faults: Faults) -> None:
        self._records, self._faults = records, faults
        self.log = FaultyLog(records.log, faults)

    def read(self) -> AbstractContextManager[Rows]:
        self._faults.check()
        return self._records.read()

    def write(self) -> AbstractContextManager[Rows]:
        self._faults.check()
        return self._records.write()

    def close(self) -> None:
        self._records.close()


class FaultyStore(LocalStore):
    """hooks: called before each read or write, with the key; what they raise is what the store's client raises."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.before_write: Callable[[str], None] = lambda key: None
        self.before_read: Callable[[str], None] = lambda key: None
        self.writes, self.reads = list[str](), list[str]()

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        self.before_write(key)
        super().write(key, parts)
        self.writes.append(key)

    def read(self, key: str) -> Iterator[bytes]:
        self.before_read(key)
        self.reads.append(key)
        yield from super().read(key)


class InProcess:
    """What a trainer's process does, in this one. `script` holds what a test wants to happen.

    It is called with what is done and the step at which; what it raises is what the process raises.
    """

    def __init__(self, script: Callable[[InProcess, str, int], None]) -> None:
        self._script, self._model, self.file = script, None, ""
        self.is_broken = self.is_closed = False
        self.logs: list[Path] = []

    def log(self, path: Path) -> None:
        self.logs.append(path)

    def build(self, file: str, name: str, args: Mapping[str, Any], seed: int, *, deadline: Any) -> None:
        assert self.file in ("", file), "a process serves one file"
        self.file = file
        self._model = None
        self._do("build")
        with user_code():
            kind = load_trainer(file, name)
        self._model = Model.build(kind, args, seed, "cpu")

    def load(self, state: State, hp: Mapping[str, Any], step: int, *, deadline: Any) -> None:
        self._do("load")
        assert self._model is not None
        self._model.load(read(state.fd), Timeline(hp), step)

    def train(self, hp: Mapping[str, Any], until: int, *, deadline: Any, on_progress: Any) -> TrainedTo:
        assert self._model is not None
        timeline = Timeline(hp)
        while self._model.step < until:
            self._do("train")
            self._advance(timeline)
            until = on_progress(self._model.step)
        return TrainedTo(self._model.step, 0.0)

    def evaluate(self, *, deadline: Any) -> dict[str, float | None]:
        self._do("evaluate")
        assert self._model is not None
        try:
            return self._model.evaluate()
        except TrainerFailed as failed:
            raise self._at_step(failed) from None

    def save(self, *, deadline: Any) -> State:
        self._do("save")
        assert self._model is not None
        return State(*self._model.save())

    def kill(self) -> None:
        self.is_broken = True

    def close(self, patience: float = 0.0) -> None:
        self.is_closed = True

    def _advance(self, timeline: Timeline) -> None:
        assert self._model is not None
        try:
            self._model.advance(timeline)
        except TrainerFailed as failed:
            raise self._at_step(failed) from None

    def _at_step(self, failed: TrainerFailed) -> TrainerFailed:
        return TrainerFailed(failed.kind, failed.error, self.step, failed.signature)

    @property
    def step(self) -> int:
        return self._model.step if self._model else 0

    def _do(self, what: str) -> None:
        assert not self.is_closed
        if self.is_broken:
            raise TrainerKilled("killed")
        self._script(self, what, self.step)


class SlotOwner:
    """Takes a slot from whoever has it, as the process does that comes after one that is gone."""

    def __init__(self, slot: str, latest: dict[str, str]) -> None:
        self.slot, self.owner, self._latest = slot, uuid4().hex, latest
        latest[slot] = self.owner

    def take(self, rows: Rows, device: str) -> bool:
        if self._latest[self.slot] != self.owner:
            raise SlotTaken(f"slot {self.slot} is another's")
        before = rows.slots.get(self.slot)
        instead_of = None if before is None else before.owner
        rows.slots.take(self.slot, self.owner, instead_of=instead_of, device=device, host="here", pid=1)
        return True


class Cluster:
    """`messages` wait until `deliver` is called. `script`: see `InProcess`, with the slot's name in front.

    start: a real process that trains, in the place of `InProcess`. room: bytes for intermediate checkpoints.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        slots: int = 1,
        start: Callable[[], Executor] | None = None,
        room: int = 2**20,
        **limits: Any,
    ) -> None:
        self.start, self.room = start, room
        self.clock = Clock()
        database.clock = self.clock.now
        self.database, self.records = database, SqlRecords(database)
        self.log, self.plans = self.records.log, Plans(self.records.log)
        self.folder, self.limits = folder, Limits(**{"lease": LEASE, "overhead": 0.0, **limits})
        self.store = FaultyStore(str(folder / "checkpoints"))
        self.messages: deque[tuple[str, int, str]] = deque()
        self.lengths: dict[str, int] = {}
        self.script: Callable[[str, InProcess, str, int], None] = lambda slot, process, what, step: None
        self.processes: Counter[str] = Counter()
        self.sources = {"toy": TrainerSource(TOY, "1")}
        self.faults = dict[str, Faults]()
        self.retiring: set[str] = set()
        self.latest = dict[str, str]()
        self.ticker = self.make_ticker()
        self.slots = {name: self.make_slot(name) for name in (f"gpu{number}" for number in range(slots))}

    def make_ticker(self) -> Ticker:
        return Ticker(
            records=self.records,
            plans=Plans(self.log),
            policy=POLICIES["critical_path"],
            publish=self.publish,
            new_id=lambda: uuid4().hex,
            lease_seconds=LEASE,
            spare_bytes=self.room,
            clock=self.clock.now,
        )

    def make_slot(self, name: str, **limits: Any) -> Slot:
        """A new process for the slot: what another had in memory is gone."""
        faults = self.faults[name] = Faults(self.clock)
        around = Surroundings(
            records=FaultyRecords(self.records, faults),  # type: ignore[arg-type]
            store=self.store,
            start=lambda: self._start(name),
            sources=lambda: self.sources,
            notify=lambda: None,
            is_retiring=lambda: name in self.retiring,
            logs=self.folder / "logs",
            clock=self.clock.now,
            wall_clock=self.clock.now,
            wait=self.clock.wait,
        )
        slot = Slot(SlotOwner(name, self.latest), "the CPU", around, replace(self.limits, **limits))
        slot.heartbeat.round()
        return slot

    def _start(self, name: str) -> Executor:
        self.processes[name] += 1
        if self.start is not None:
            return self.start()
        process = InProcess(lambda process, what, step: self.script(name, process, what, step))
        self.script(name, process, "start", 0)
        return process

    def close(self) -> None:
        for slot in self.slots.values():
            slot.close()

    def publish(self, chain: str, stages: int, slot: str) -> None:
        self.messages.append((chain, 0, slot))
        self.lengths[chain] = stages

    # ------------------------------------------------------------------------------------------------ studies

    def submit(self, spec: Json) -> StudyId:
        checked = StudySpec.from_dict(spec)
        args, study = dict(checked.trainer_args), StudyId(uuid4().hex[:8])
        version = self.sources[checked.trainer].version
        opened = e.PlanOpened(trainer=checked.trainer, trainer_version=version, trainer_args=args, seed=checked.seed)
        self.stream = plan_id(checked.trainer, version, args, checked.seed)
        command = c.SubmitStudy(plan=opened, study=study, spec=checked.to_json(), at=0.0)
        transact(self.log, self.plans, self.stream, lambda plan: decide(plan, command), at=0.0)
        return study

    def cancel(self, study: StudyId) -> None:
        command = c.CancelStudy(study=study, at=0.0)
        transact(self.log, self.plans, self.stream, lambda plan: decide(plan, command), at=0.0)

    @property
    def plan(self) -> SearchPlan:
        return self.plans.get(self.stream)

    def study(self, study: StudyId) -> Study:
        return self.plan.studies[study]

    def events(self, kind: type) -> list[Any]:
        recorded = self.log.read(self.stream, limit=100_000)
        return [each.event for each in recorded if isinstance(each.event, kind)]

    def values(self, study: StudyId) -> list[Any]:
        """Of each trial: its state, and the metrics at its end."""
        return [(trial.state, self.plan.metrics(trial, trial.steps)) for trial in self.study(study).trials]

    def row(self, slot: str = "gpu0") -> SlotRow | None:
        with self.records.read() as rows:
            return rows.slots.get(slot)

    def live(self) -> list[ChainRow]:
        with self.records.read() as rows:
            return rows.chains.live()

    # ------------------------------------------------------------------------------------------------ what happens

    def at(self, wanted: str, step: int, do: Callable[[], object], slot: str = "") -> None:
        """Once, when a process is about to do that at that step: `train`, `evaluate`, `save`, `load`, `build`."""

        def script(name: str, process: InProcess, what: str, at: int) -> None:
            if (what, at) == (wanted, step) and slot in ("", name):
                self.script = lambda *_: None
                do()

        self.script = script

    def deliver(self) -> bool:
        """Hand over the next message; what follows it in its chain is sent as Celery does."""
        chain, index, slot = self.messages.popleft()
        if not self.slots[slot].run_stage(chain, index):
            return False
        if index + 1 < self.lengths[chain]:
            self.messages.append((chain, index + 1, slot))
        return True

    def settle(self) -> None:
        """Until everything that was begun to be saved is, and all facts are on record."""
        for name, slot in self.slots.items():
            assert slot.drain(SETTLE_SECONDS), f"{name} is still busy"

    def beat(self) -> None:
        """A heartbeat of each slot."""
        self.clock.wait(self.limits.heartbeat)
        for slot in self.slots.values():
            slot.heartbeat.round()

    def round(self) -> None:
        """A tick, and all that follows from it."""
        self.beat()
        self.ticker.tick()
        while self.messages:
            self.deliver()
        self.settle()

    def run(self, study: StudyId, rounds: int = 60) -> Study:
        """Rounds until the study is over, which must be after so many of them."""
        for _ in range(rounds):
            self.round()
            if self.study(study).is_final:
                return self.study(study)
        raise AssertionError(f"study {study} is {self.study(study).state} after {rounds} rounds")

    def idle(self) -> bool:
        """Whether no chain is live, and so no slot busy."""
        with self.records.read() as rows:
            return not rows.chains.live() and not any(slot.chain for slot in rows.slots.all())
