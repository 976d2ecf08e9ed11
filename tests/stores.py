"""Stores as a run leaves them, made without a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from plans import OPENED, study_of

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.plans import Plans
from app.events.records import Write, transact
from app.events.sql_log import SqlRecords
from app.workers.slot.checkpoint_store import CheckpointStore, Stored
from app.workers.state import State


def still_store(folder: Path, name: str = "still", *, is_over: bool = False) -> str:
    """Make a store in a folder, with a submitted study that does not run; its id. is_over: it was cancelled."""
    folder.mkdir()
    database = Database(f"sqlite:///{folder / 'stagetree.db'}")
    database.create()
    records = SqlRecords(database)
    spec = study_of([({"lr": 0.1}, 4)], name=name).to_json()
    command = c.SubmitStudy(plan=OPENED, study=StudyId("still-123456"), spec=spec, at=1.0)
    over = c.CancelStudy(study=StudyId("still-123456"), at=2.0)
    for each in (command, over) if is_over else (command,):
        write = Write(stream="plan-1", decide=partial(lambda given, plan: decide(plan, given), each), at=1.0)
        transact(records.log, Plans(records.log), write)
    records.close()
    return "still-123456"


def write_state(checkpoints: CheckpointStore, place: str, image: bytes, **how: Any) -> Stored:
    """Store a state with these bytes, and close it."""
    state = State.from_bytes(image)
    try:
        return checkpoints.write(place, state, **how)
    finally:
        state.close()
