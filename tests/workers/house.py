"""A scheduler and slots in one process, with a broker that is a list: faults happen exactly where a test wants them."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.workers.tick import Ticker

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import StudyId, plan_id
from app.domain.search_plan import Study
from app.events import studies
from app.events.database import Database
from app.events.log import SqlLog
from app.events.transact import Plans, transact
from app.registry import load
from app.scheduling.policies import POLICIES
from app.workers.checkpoints import Checkpoints
from app.workers.slot import Slot
from stagetree.spec import StudySpec

TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
LEASE = 60.0
Json = dict[str, Any]


class House:
    """`messages` wait until `deliver` is called; `seconds` is how far the database's clock was put forward."""

    def __init__(self, database: Database, checkpoints: str, slots: int = 1) -> None:
        self.seconds = 0.0
        database.clock = lambda: 1_000_000.0 + self.seconds
        self.database, self.log = database, SqlLog(database)
        self.plans = Plans(self.log)
        self.messages: deque[tuple[str, int, str]] = deque()
        self.lengths: dict[str, int] = {}
        self.checkpoints = checkpoints
        self.ticker = self.make_ticker()
        self.slots = {f"gpu{number}": self.make_slot(f"gpu{number}") for number in range(slots)}

    def make_ticker(self) -> Ticker:
        return Ticker(
            database=self.database,
            log=self.log,
            plans=Plans(self.log),
            policy=POLICIES["critical_path"],
            publish=self.publish,
            new_id=lambda: uuid4().hex,
            lease_seconds=LEASE,
            spare_bytes=0,
        )

    def make_slot(self, name: str) -> Slot:
        slot = Slot(
            name,
            device="cpu",
            owner="house",
            database=self.database,
            log=self.log,
            checkpoints=Checkpoints(self.checkpoints),
            trainer=lambda trainer: load([TOY], trainer),
            versions=lambda: {"toy": "1"},
            nudge=lambda: None,
            lease_seconds=LEASE,
            heartbeat_seconds=3600,
            spare_overhead=0,
        )
        slot.register()
        return slot

    def close(self) -> None:
        for slot in self.slots.values():
            slot.close()

    def publish(self, chain: str, stages: int, slot: str) -> None:
        self.messages.append((chain, 0, slot))
        self.lengths[chain] = stages

    def submit(self, spec: Json) -> StudyId:
        checked = StudySpec.from_dict(spec)
        args, study = dict(checked.trainer_args), StudyId(uuid4().hex[:8])
        opened = e.PlanOpened(trainer=checked.trainer, trainer_version="1", trainer_args=args, seed=checked.seed)
        self.stream = plan_id(checked.trainer, "1", args, checked.seed)
        command = c.SubmitStudy(plan=opened, study=study, spec=checked.to_json(), at=0.0)
        transact(
            self.log,
            self.plans,
            self.stream,
            lambda plan: decide(plan, command),
            at=0.0,
            alongside=lambda session: studies.add(session, study, self.stream, checked.name, "running", 0.0),
        )
        return study

    def study(self, study: StudyId) -> Study:
        return self.plans.get(self.stream).studies[study]

    def events(self, kind: type) -> list[Any]:
        recorded = self.log.read(self.stream, limit=100_000)
        return [each.event for each in recorded if isinstance(each.event, kind)]

    def deliver(self) -> None:
        """Hand over the next message; what follows it in its chain is sent as Celery does."""
        chain, index, slot = self.messages.popleft()
        if self.slots[slot].run_stage(chain, index) and index + 1 < self.lengths[chain]:
            self.messages.append((chain, index + 1, slot))

    def settle(self) -> None:
        """Until everything that was begun to be saved is."""
        for slot in self.slots.values():
            slot._saver.wait()

    def run(self, study: StudyId, rounds: int = 200) -> Study:
        """Tick and deliver until the study is over, which must be after so many rounds."""
        for _ in range(rounds):
            self.ticker.tick()
            while self.messages:
                self.deliver()
            self.settle()
            if self.study(study).is_final:
                return self.study(study)
        raise AssertionError(f"study {study} is {self.study(study).state} after {rounds} rounds")

    def values(self, study: StudyId) -> list[Any]:
        """Of each trial: its state, and the metrics at its end."""
        plan = self.plans.get(self.stream)
        return [(trial.state, plan.metrics(trial, trial.steps)) for trial in plan.studies[study].trials]
