"""A scheduler on records of any kind, slots that a test plays, and accidents exactly where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from assignments import FENCE
from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.decide import decide
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import FailureKind, StudyId
from app.events.log import Append, StoredEvent, VersionConflict
from app.events.memory import MemoryRecords
from app.events.plans import Plans
from app.events.records import Records, Write, transact
from app.events.rows import ChainRecord, RowsPort
from app.outages import DatabaseUnavailable
from app.scheduling.fair_share import POLICIES
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.tick import Scheduler
from stagetree.spec import StudySpec

LEASE = 60.0
PLAN = "plan"

OPENED = e.PlanOpened(trainer="toy", trainer_version="1", trainer_args={}, seed=0)
RANDOM: Json = {"kind": "random", "num_trials": 4, "max_steps": 4}


def trials(*steps: int) -> Json:
    """The tuner of trials that differ in nothing but their length."""
    return {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": each} for each in steps]}


ONE = trials(10)


def rates(*values: Any, steps: int = 4) -> Json:
    """The tuner of trials that differ in nothing but their learning rate."""
    return {"kind": "trials", "trials": [{"hp": {"lr": each}, "steps": steps} for each in values]}


class Accidents:
    """The log of some records, with accidents: `before_write` is called before each write, and may raise."""

    def __init__(self, records: Records) -> None:
        self.inner = records
        self.before_write: Callable[[Append], None] = lambda append: None
        self.before_read: Callable[[], None] = lambda: None
        self.changes = 0  # of rows alone
        self.log = _AccidentalLog(self)

    @contextmanager
    def read(self) -> Iterator[RowsPort]:
        self.before_read()
        with self.inner.read() as rows:
            yield rows

    @contextmanager
    def write(self) -> Iterator[RowsPort]:
        self.changes += 1
        with self.inner.write() as rows:
            yield rows

    def close(self) -> None:
        self.inner.close()


class _AccidentalLog:
    def __init__(self, accidents: Accidents) -> None:
        self._accidents = accidents

    def write(self, append: Append) -> list[StoredEvent]:
        self._accidents.before_write(append)
        return self._accidents.inner.log.write(append)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accidents.inner.log, name)


def times(number: int, error: Exception) -> Callable[..., None]:
    """Raises the error this many times."""
    left = iter(range(number))

    def accident(*_: object) -> None:
        if next(left, None) is not None:
            raise error

    return accident


AWAY = DatabaseUnavailable("the server closed the connection unexpectedly")
LOST_RACE = VersionConflict("another was faster")


class Scene:
    """One scheduler, and slots whose workers report what the scene says. `at`: the clock of leases and facts."""

    def __init__(self, records: Records | None = None, slots: int = 1, **ports: Any) -> None:
        self.at = 1_000_000.0
        self.records = Accidents(records or MemoryRecords(lambda: self.at))
        self.messages: list[tuple[str, int, str]] = []
        self.invited: list[tuple[str, str]] = []  # chains, and the slots that are lent to them
        self.plans, self._ids, self._ports = Plans(self.records.log), count(), ports
        self.scheduler = self.make_scheduler()
        for number in range(slots):
            self.register(f"gpu{number}")

    def make_scheduler(self, plans: Plans | None = None) -> Scheduler:
        """A scheduler that was just started."""
        return Scheduler(self.ports(plans))

    def ports(self, plans: Plans | None = None) -> Ports:
        self.scheduler_plans = plans or Plans(self.records.log)
        ports = {
            "policy": POLICIES["critical_path"],
            "publish": self._publish,
            "pause": lambda attempt: None,
            "elapsed": lambda: self.at,
            "intermediate_bytes": 0,
        } | self._ports
        return Ports(
            records=self.records,
            plans=self.scheduler_plans,
            new_id=lambda: f"chain{next(self._ids)}",
            clock=lambda: self.at,
            lease_seconds=LEASE,
            **ports,
        )

    def register(
        self,
        slot: str,
        owner: str = "anna",
        trainers: Json | None = None,
        device: str = "cpu",
        kind: str = "",
        host: str = "here",
    ) -> None:
        """A worker has the slot from here on."""
        with self.records.write() as rows:
            before = rows.slots.get(slot)
            rows.slots.take(slot, owner, instead_of=before and before.owner, device=device, host=host, pid=1, kind=kind)
            rows.slots.describe(slot, owner, trainers={"toy": "1"} if trainers is None else trainers, note=None)

    def touch(self, slot: str, owner: str = "anna") -> None:
        with self.records.write() as rows:
            rows.slots.touch(slot, owner)

    def submit(
        self,
        tuner: Json = RANDOM,
        name: str = "study",
        plan: str = PLAN,
        opened: e.PlanOpened = OPENED,
        **fields: Any,
    ) -> StudyId:
        spec: Json = {"name": name, "trainer": "toy", "metric": "loss", "mode": "min", "tuner": tuner}
        if tuner["kind"] not in ("trials", "external"):
            spec["space"] = {"lr": {"uniform": [0.1, 1.0]}}
        checked = StudySpec.from_dict({**spec, **fields}).to_json()
        command = c.SubmitStudy(plan=opened, study=StudyId(name), spec=checked, at=0.0)
        transact(self.records.log, self.plans, Write(stream=plan, decide=lambda p: decide(p, command), at=0.0))
        return StudyId(name)

    def give(self, command: c.Command, plan: str = PLAN) -> None:
        """Decide a command on a plan, and record what follows."""
        transact(self.records.log, self.plans, Write(stream=plan, decide=lambda p: decide(p, command), at=self.at))

    def plan(self, stream: str = PLAN) -> SearchPlan:
        return self.plans.get(stream)

    def study(self, name: str = "study", plan: str = PLAN) -> Study:
        return self.plan(plan).studies[StudyId(name)]

    def events(self, kind: type, plan: str = PLAN) -> list[Any]:
        return [each.event for each in self.records.log.read(plan) if isinstance(each.event, kind)]

    def slots_of(self) -> list[str]:
        """To which slot each chain went."""
        return [event.slot for event in self.events(e.ChainAssigned)]

    def outcomes(self) -> list[str]:
        """Of the chains that have ended."""
        return [event.outcome for event in self.events(e.ChainEnded)]

    def assigned_stages(self) -> list[tuple[int, int]]:
        """From where to where the stages go that were given to slots."""
        return [(stage.start, stage.end) for event in self.events(e.ChainAssigned) for stage in event.stages]

    def row(self, chain: str) -> ChainRecord:
        with self.records.read() as rows:
            found = rows.chains.get(chain)
        assert found is not None
        return found

    def assignment(self, chain: str) -> ChainAssignment:
        given = self.row(chain).assignment
        assert isinstance(given, ChainAssignment)
        return given

    # A worker's side

    def running(self, tuner: Json = ONE) -> str:
        """The chain that a worker of gpu0 has begun, of a study that is submitted now."""
        self.submit(tuner)
        self.scheduler.tick()
        return self.claim()[0]

    def beat(self, chain: str, step: int, *kept: int) -> None:
        """The chain's worker reports its step, and which requested steps it has kept."""
        with self.records.write() as rows:
            rows.chains.heartbeat(chain, FENCE, LEASE, step, kept)

    def expire(self, *alive: str) -> None:
        """More than a lease goes by, in which only these slots were heard of."""
        self.at += LEASE + 1
        for slot in alive:
            self.touch(slot)

    def _publish(self, chain: str, stages: int, slot: str) -> None:
        if stages:
            self.messages.append((chain, stages, slot))
        else:
            self.invited.append((chain, slot))

    def claim(self, owner: str = "anna") -> tuple[str, tuple[e.Stage, ...]]:
        """The oldest message arrives, and its chain is begun."""
        chain, _, _ = self.messages.pop(0)
        with self.records.write() as rows:
            stream = rows.chains.claim(chain, owner, LEASE).stream
        return chain, self.plan(stream).chains[chain].stages  # type: ignore[index]

    def train(self, metrics: Json | None = None) -> None:
        """The oldest message's chain is trained to its end."""
        chain, stages = self.claim()
        facts: list[e.Event] = []
        for index, stage in enumerate(stages):
            measured = {"loss": 0.5} if metrics is None else metrics
            facts += [e.Evaluated(node=stage.node, step=step, metrics=measured) for step in stage.evaluate]
            facts.append(e.StageCompleted(chain=chain, index=index, seconds=1.0))
            facts.append(e.CheckpointKept(node=stage.node, step=stage.end, key=f"{chain}/{index}", sha256="", size=1))
        self.record(
            chain, [*facts, e.ChainEnded(chain=chain, outcome="done")], lambda rows: rows.chains.finish(chain, FENCE)
        )

    def fail(self, signature: str | None = "Boom") -> None:
        """The oldest message's chain fails at its first step, by the user's code."""
        chain, stages = self.claim()
        failed = e.StageFailed(
            chain=chain,
            index=0,
            step=stages[0].start,
            kind=FailureKind.EXCEPTION,
            error="Boom",
            seconds=1.0,
            signature=signature,
        )
        self.record(chain, [failed], lambda rows: rows.chains.end(chain, FENCE))

    def record(self, chain: str, facts: list[e.Event], proof: Any) -> None:
        self.records.inner.log.append(self.row(chain).stream, facts, expected=None, at=self.at, alongside=proof)

    def run(self, rounds: int = 100) -> None:
        """Tick and train until nothing is left to do."""
        for _ in range(rounds):
            self.scheduler.tick()
            if not self.messages:
                return
            while self.messages:
                self.train()
        raise AssertionError("it does not come to an end")


def scene(hosts: Json, kind: str = "H200", *, reached: bool = False, **ports: Any) -> Scene:
    """This many slots of each machine. reached: whether they reach each other. ports: as of `Scene`."""
    made = Scene(slots=0, **ports)
    for host, slots in hosts.items():
        for number in range(slots):
            with made.records.write() as rows:
                name = f"{host}-gpu{number}"
                where = {"address": f"{host}:70{number}"} if reached else {}
                rows.slots.take(name, "anna", instead_of=None, device=name, host=host, pid=1, kind=kind, **where)
                rows.slots.describe(name, "anna", trainers={"toy": "1"}, note=None)
    return made
