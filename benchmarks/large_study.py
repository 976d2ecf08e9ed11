"""Databases with the log of a large study, simulated, for benchmarks that look at one."""

from __future__ import annotations

from math import inf
from pathlib import Path
from random import Random

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.sql_log import SqlLog
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

BATCH = 50
STUDY, STREAM, OPEN = "scale", "simulated", "open"
SPACE = {f"p{number}": {"uniform": [0.0, 1.0]} for number in range(20)}
RUNGS = {"min_steps": 1, "max_steps": 81, "reduction_factor": 3}


def whole(folder: Path, trials: int) -> str:
    """The address of a database with all of a study of ASHA, which is made if it is not there."""
    return _database(folder / "log.db", {"kind": "asha", **RUNGS, "num_trials": trials}, inf)


def halving_study(folder: Path, trials: int, events: float) -> str:
    """The same with a study of successive halving, which begins with all its trials, after this many events."""
    return _database(folder / "under_way.db", {"kind": "sha", **RUNGS, "num_trials": trials}, events)


def _database(path: Path, tuner: dict[str, object], events: float) -> str:
    url = f"sqlite:///{path}"
    if not path.is_file():
        simulator = _submitted(StudyId(STUDY), tuner, slots=64)
        while simulator.plan.version < events and simulator.advance():
            pass
        database = Database(url)
        database.create()
        _copy(simulator, SqlLog(database), STREAM)
        database.dispose()  # all of it is in the one file
    return url


def open_study(log: SqlLog) -> None:
    """A study of a hundred trials that is under way."""
    simulator = _submitted(StudyId(OPEN), {"kind": "asha", **RUNGS, "num_trials": 100}, slots=4)
    simulator.run_until(100.0)
    _copy(simulator, log, OPEN)


def _submitted(name: StudyId, tuner: dict[str, object], slots: int) -> Simulator:
    spec = {"name": name, "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE, "tuner": tuner}
    simulator = Simulator(slots=slots, measure=_loss)
    opened = e.PlanOpened(trainer="none", trainer_version=name, trainer_args={}, seed=0)
    study = StudySpec.from_dict(spec).to_json()
    simulator.give(c.SubmitStudy(plan=opened, study=name, spec=study, at=0.0))
    return simulator


def _loss(node: Node, step: int) -> e.Metrics:
    return {"loss": Random(f"{node.id}/{step}").random() + 1 / step}


def _copy(simulator: Simulator, log: SqlLog, stream: str) -> None:
    recorded = simulator.log()
    for first in range(0, len(recorded), BATCH):
        batch = recorded[first : first + BATCH]
        log.append(stream, [each.event for each in batch], expected=first, at=batch[0].at)
