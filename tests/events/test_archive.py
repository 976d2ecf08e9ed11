"""Archived plans: read as before, changed by no writer, and restored."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import PlanId, StateConflict, StudyId
from app.events import archive
from app.events.database import Database
from app.events.housekeeping import erase_notes, strike
from app.events.log import Idempotency
from app.events.plans import Plans
from app.events.records import Write, transact
from app.events.sql_log import SqlRecords
from app.workers.scheduler.retention import Retention

SPEC: dict[str, Any] = {"name": "x", "trainer": "t", "metric": "m", "mode": "max", "space": {"lr": [0.1, 1e22]}}
SPEC["tuner"] = {"kind": "grid", "max_steps": 3}
OLD, NEW = PlanId("old"), PlanId("new")
LATER = 1_000.0


def ask(records: SqlRecords, plan: PlanId, asked: c.Command, at: float = 1.0) -> None:
    once = Idempotency(f"api:{plan}:{type(asked).__name__}:{at}", "")
    write = Write(stream=plan, decide=lambda plan: decide(plan, asked), at=at, idempotency=once)
    transact(records.log, Plans(records.log), write, pause=lambda seconds: None)


def submit(records: SqlRecords, plan: PlanId, study: str) -> None:
    opened = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={"of": plan}, seed=0)
    ask(records, plan, c.SubmitStudy(plan=opened, study=StudyId(study), spec=SPEC, at=1.0))


@pytest.fixture
def records(database: Database) -> SqlRecords:
    """A plan with a cancelled study, and one with a running study; their events alternate."""
    made = SqlRecords(database)
    submit(made, OLD, "over")
    submit(made, NEW, "running")
    ask(made, OLD, c.AddNote(study=StudyId("over"), trial=None, text="mine", at=1.0))
    ask(made, NEW, c.AddNote(study=StudyId("running"), trial=None, text="theirs", at=1.0))
    ask(made, OLD, c.CancelStudy(study=StudyId("over"), at=2.0), 2.0)
    return made


def test_an_archived_plan_is_read_and_restored_with_its_positions(records: SqlRecords, database: Database) -> None:
    before, tail, plan = records.log.read(OLD), records.log.tail(), Plans(records.log).get(OLD)
    packed = archive.archive(database, OLD, LATER)
    assert packed is not None and packed.events == len(before)
    assert records.log.read(OLD) == before and records.log.read(OLD, after=1, limit=2) == before[1:3]
    assert list(records.log.scan(OLD)) == before and records.log.read(OLD, after=len(before)) == []
    assert Plans(records.log).get(OLD) == plan
    assert records.log.find_by_key(f"api:{OLD}:CancelStudy:2.0") == before[-1:]
    assert [*records.log.versions()] == [NEW] and {stream for _, stream in records.log.tail()} == {NEW}
    assert archive.archive(database, OLD, LATER) is None
    assert archive.bring_back(database, OLD) == packed and archive.bring_back(database, OLD) is None
    assert records.log.read(OLD) == before and records.log.tail() == tail
    ask(records, OLD, c.AddNote(study=StudyId("over"), trial=None, text="more", at=LATER), LATER)


@pytest.mark.parametrize("expected", [None, 0, "its version"])
def test_no_event_is_added_to_an_archived_plan(
    records: SqlRecords, database: Database, expected: int | str | None
) -> None:
    head, note = records.log.head(), e.StudyStruck(study=StudyId("over"), reason="", at=LATER)
    at = records.log.version(OLD) if isinstance(expected, str) else expected
    archive.archive(database, OLD, LATER)
    with pytest.raises(StateConflict, match="stagetree archive --back"):
        records.log.append(OLD, [note], expected=at, at=LATER)
    with pytest.raises(StateConflict, match="is archived"):
        ask(records, OLD, c.AddNote(study=StudyId("over"), trial=None, text="more", at=LATER), LATER)
    with pytest.raises(StateConflict, match="is archived"):
        strike(records, "over", "", LATER)
    assert records.log.head() == head


def test_an_active_plan_is_not_archived(records: SqlRecords, database: Database) -> None:
    assert archive.old(database, LATER) == [OLD]
    assert archive.old(database, 1.5) == []
    with pytest.raises(StateConflict, match="not over"):
        archive.archive(database, NEW, LATER)
    assert archive.archive(database, "none", LATER) is None
    assert archive.list_archived(database) == []


def test_a_struck_study_is_struck_in_the_archive_too(records: SqlRecords, database: Database) -> None:
    strike(records, "over", "wrong data", LATER)
    archive.archive(database, OLD, LATER)
    assert records.log.struck_studies(OLD) == {"over"}


def test_notes_are_erased_in_the_archive_too(records: SqlRecords, database: Database) -> None:
    archive.archive(database, OLD, LATER)
    assert erase_notes(database, "over") == 1
    assert archive.list_archived(database) == [OLD]
    assert "mine" not in str(records.log.read(OLD))


def test_the_checkpoint_deleter_forgets_an_archived_plan(records: SqlRecords, database: Database) -> None:
    retention = Retention(records, Plans(records.log), None, 0, lambda: LATER)  # type: ignore[arg-type]
    retention.look()
    archive.archive(database, OLD, LATER)
    retention.survey()
    assert [*retention.choose()] == []
    assert retention.look().is_done
