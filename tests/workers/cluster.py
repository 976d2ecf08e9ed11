"""A scheduler and slots in one process, with a broker that is a list: faults happen exactly where a test wants them.

Records, outbox, saver and heartbeat are the real ones. What trains is the real model, in this process; time only passes
where a part waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from faulty import Clock, Faults, FaultyRecords, FaultyStore
from in_process import InProcess
from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.inputs import fingerprint
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StudyId, plan_id
from app.events.database import Database
from app.events.plans import Plans
from app.events.records import Write, transact
from app.events.rows import ChainRecord, SlotTaken
from app.events.sql_log import SqlRecords
from app.events.sql_rows import Rows
from app.registry import TrainerSource
from app.scheduling.fair_share import POLICIES
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.retention import Retention
from app.workers.scheduler.tick import Scheduler
from app.workers.slot.context import Limits, SlotDependencies
from app.workers.slot.slot import Slot
from app.workers.trainer_process import TrainerProcess
from stagetree.spec import StudySpec, reduction_name

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LANES = str(Path(__file__).parents[1] / "packing" / "lanes.py")
LEASE = 60.0
SETTLE_SECONDS = 60.0


class SlotOwner:
    """Takes a slot from its owner, as the next process does after a dead one."""

    kind, host = "cpu", "here"

    def __init__(self, slot: str, latest: dict[str, str]) -> None:
        self.slot, self.owner, self._latest = slot, uuid4().hex, latest
        latest[slot] = self.owner

    def take(self, rows: Rows, device: str) -> bool:
        if self._latest[self.slot] != self.owner:
            raise SlotTaken(f"slot {self.slot} is another's")
        before = rows.slots.get(self.slot)
        instead_of = None if before is None else before.owner
        rows.slots.take(
            self.slot, self.owner, instead_of=instead_of, device=device, host=self.host, pid=1, kind=self.kind
        )
        return True


class Cluster:
    """`messages` wait until `deliver` is called. `script`: see `InProcess`, with the slot's name in front.

    start: a real process that trains, instead of `InProcess`; of a gang, with the names of its members. room:
    bytes for intermediate checkpoints. proofs: whether trainers are tried first, and hand-overs compared.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        slots: int = 1,
        start: Callable[..., TrainerProcess] | None = None,
        room: int = 2**20,
        proofs: bool = False,
        **limits: Any,
    ) -> None:
        self.start, self.room, self.proofs = start, room, proofs
        self.clock = Clock()
        database.clock = self.clock.now
        self.database, self.records = database, SqlRecords(database)
        self.log, self.plans = self.records.log, Plans(self.records.log)
        self.folder, self.limits = folder, Limits(**{"lease": LEASE, "overhead": 0.0, **limits})
        self.store = FaultyStore(str(folder / "checkpoints"))
        self.messages: deque[tuple[str, int, str]] = deque()
        self.lengths: dict[str, int] = {}
        self._under_way: dict[str, tuple[str, int]] = {}
        self.script: Callable[[str, InProcess, str, int], None] = lambda slot, process, what, step: None
        self.processes: Counter[str] = Counter()
        self.sources = {"toy": TrainerSource(TOY, "1")}
        self.faults = {"scheduler": Faults(self.clock)}
        self.slot_records = dict[str, FaultyRecords]()
        self.retiring: set[str] = set()
        self.latest = dict[str, str]()
        self.told = 0  # the number of messages to the scheduler
        self.retention: Retention | None = None
        self.ticker = self.make_ticker()
        self.slots = {name: self.make_slot(name) for name in (f"gpu{number}" for number in range(slots))}

    def make_ticker(self) -> Scheduler:
        return Scheduler(self.ports())

    def ports(self) -> Ports:
        records = FaultyRecords(self.records, self.faults["scheduler"])
        return Ports(
            records=records,  # type: ignore[arg-type]
            plans=Plans(records.log),  # type: ignore[arg-type]
            policy=POLICIES["critical_path"],
            publish=self.publish,
            new_id=lambda: uuid4().hex,
            lease_seconds=LEASE,
            intermediate_bytes=self.room,
            clock=self.clock.now,
            elapsed=self.clock.now,
            chain_quota=self.chain_quota,
            proofs=self.proofs,
        )

    def chain_quota(self, plans: Mapping[str, SearchPlan], live: int, wanted: int) -> int:
        return wanted if self.retention is None else self.retention.chain_quota(plans, live, wanted)

    def make_slot(self, name: str, **limits: Any) -> Slot:
        """A new process for the slot: what another had in memory is gone."""
        faults = self.faults[name] = Faults(self.clock)
        records = self.slot_records[name] = FaultyRecords(self.records, faults)
        around = SlotDependencies(
            records=records,  # type: ignore[arg-type]
            store=self.store,
            start=lambda members=(): self._start(name, members),
            sources=lambda: self.sources,
            notify=self._tell,
            send_next=lambda: self._send_next(name),
            is_retiring=lambda: name in self.retiring,
            logs=self.folder / "logs",
            study_folders=[str(self.folder)],
            clock=self.clock.now,
            wall_clock=self.clock.now,
            wait=lambda seconds: self.clock.wait(seconds),  # looked up each time: a test may replace it
        )
        slot = Slot(SlotOwner(name, self.latest), "the CPU", around, replace(self.limits, **limits))
        slot.heartbeat.round()
        return slot

    def _start(self, name: str, members: Sequence[str] = ()) -> TrainerProcess:
        self.processes[name] += 1
        if self.start is not None:
            return self.start(members) if members else self.start()
        process = InProcess(lambda process, what, step: self.script(name, process, what, step))
        self.script(name, process, "start", 0)
        return process  # type: ignore[return-value]

    def _tell(self) -> None:
        self.told += 1

    def close(self) -> None:
        for slot in self.slots.values():
            slot.close()
        self.database.dispose()

    def publish(self, chain: str, stages: int, slot: str) -> None:
        if not stages:  # to a slot that is lent
            self.lend(chain, slot)
            return
        self.messages.append((chain, 0, slot))
        self.lengths[chain] = stages

    def lend(self, chain: str, slot: str) -> None:
        """The message that a slot is lent arrives at once: else the chain's slot would wait for it in this thread."""
        self.slots[slot].run_rank(chain)

    # ------------------------------------------------------------------------------------------------ studies

    def submit(self, spec: Json, begin: Json | None = None, inputs: Sequence[Json] = ()) -> StudyId:
        """begin, inputs: as of `StudySubmitted`; the key of its initial weights is made here, and written there."""
        checked = StudySpec.from_dict(spec)
        args, study = dict(checked.trainer_args), StudyId(uuid4().hex[:8])
        version = self.sources[checked.trainer].version
        how: Json = {"determinism": checked.determinism, "packing": checked.lanes}
        how |= {"begin": begin and {name: begin[name] for name in ("sha256", "state")}}
        how |= {"inputs": [fingerprint(each) for each in inputs], "shards": checked.shards or 0}
        how |= {"parallel": reduction_name(checked.parallel, checked.shards, checked.ranks)}
        opened = e.PlanOpened(
            trainer=checked.trainer,
            trainer_version=version,
            trainer_args=args,
            seed=checked.seed,
            **how,
        )
        self.stream = plan_id(checked.trainer, version, args, checked.seed, **how)
        what: Json = {"plan": opened, "study": study, "spec": checked.to_json(), "at": 0.0, "inputs": list(inputs)}
        command = c.SubmitStudy(**what, begin=begin and {"key": f"{self.stream}/begin-{study}", **begin})
        self.give(command)
        return study

    def give(self, command: c.Command) -> None:
        """Decide a command on the plan of the study that was submitted last, and record what follows."""
        transact(self.log, self.plans, Write(stream=self.stream, decide=lambda plan: decide(plan, command), at=0.0))

    def state(self, fact: e.Event) -> None:
        transact(self.log, self.plans, Write(stream=self.stream, decide=lambda plan: [fact], at=0.0))

    def cancel(self, study: StudyId) -> None:
        self.give(c.CancelStudy(study=study, at=0.0))

    def deleting(self, budget: int | None = None) -> Retention:
        return Retention(self.records, self.plans, self.store, budget, self.clock.now)

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

    def row(self, slot: str = "gpu0") -> Any:
        """Of the slot; None where no worker has it."""
        with self.records.read() as rows:
            return rows.slots.get(slot)

    def live(self) -> Sequence[ChainRecord]:
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
        self._under_way[slot] = (chain, index)
        if not self.slots[slot].run_stage(chain, index):
            return False
        self._send_next(slot)
        return True

    def _send_next(self, slot: str) -> None:
        """What follows the message that a slot was given last, once."""
        chain, index = self._under_way.pop(slot, ("", 0))
        if index + 1 < self.lengths.get(chain, 0):
            self.messages.append((chain, index + 1, slot))

    def work(self) -> None:
        """A tick, the first message that comes of it, and what follows from that stage."""
        self.ticker.tick()
        self.deliver()
        self.settle()

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
        """Rounds until the study is over, which must be within this many."""
        for _ in range(rounds):
            self.round()
            if self.study(study).is_final:
                return self.study(study)
        raise AssertionError(f"study {study} is {self.study(study).state} after {rounds} rounds")

    def idle(self) -> bool:
        """Whether no chain is live, and so no slot busy."""
        with self.records.read() as rows:
            return not rows.chains.live() and not any(slot.chain for slot in rows.slots.all())
