"""People are erased from the log: their names everywhere, their notes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.terms import PlanId, Scope, StudyId
from app.events.database import Database
from app.events.housekeeping import ERASED_TEXT, erase_notes, erase_person
from app.events.log import Idempotency
from app.events.plans import Plans
from app.events.records import Write, transact
from app.events.sql_log import SqlRecords
from app.search.replay import replay
from app.service.access import create

STREAM = PlanId("plan")
OPENED = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={}, seed=0)
SPEC: dict[str, Any] = {"name": "x", "trainer": "t", "metric": "m", "mode": "max", "space": {"lr": [0.1, 0.2]}}
SPEC["tuner"] = {"kind": "grid", "max_steps": 3}
MINE, THEIRS = StudyId("mine"), StudyId("theirs")
SECRET = "anna called this one hers"


def ask(records: SqlRecords, command: c.Command, by: str) -> None:
    once = Idempotency(f"api:{by}:{type(command).__name__}:{getattr(command, 'study', '')}", "")
    write = Write(stream=STREAM, decide=lambda plan: decide(plan, command), at=1.0, idempotency=once, by=by)
    transact(records.log, Plans(records.log), write, pause=lambda seconds: None)


def two_signed_studies(database: Database) -> SqlRecords:
    """Two studies, by anna and by berta, who each wrote a note to their own."""
    records = SqlRecords(database)
    create(records, "anna", Scope.SUBMIT, None, None, 1.0)
    for study, by, said in ((MINE, "anna", SECRET), (THEIRS, "annabel", "good")):
        ask(records, c.SubmitStudy(plan=OPENED, study=study, spec=SPEC, at=1.0, by=by), by)
        ask(records, c.AddNote(study=study, trial=None, text=said, at=1.0, by=by), by)
        ask(records, c.CorrectNote(study=study, event=2, text=f"{said}!", at=2.0, by=by), by)
        ask(records, c.LabelStudy(study=study, add=("mine",), at=2.0, by=by), by)
        ask(records, c.SuggestConfigurations(study=study, configurations=({"lr": 0.1},), at=2.0, by=by), by)
    return records


def stored_text(database: Database) -> str:
    """The text of all tables that contain names."""
    tables = ("events", "studies", "tokens", "idempotency")
    with database.engine.connect() as connection:
        return "\n".join(str(row) for name in tables for row in connection.execute(text(f"SELECT * FROM {name}")))


def test_a_name_is_erased_and_its_actions_keep_one_author(database: Database) -> None:
    records = two_signed_studies(database)
    before = fold([each.event for each in records.log.read(STREAM)])
    pseudonym, count = erase_person(database, "anna")
    assert count == len([each for each in records.log.read(STREAM) if each.by == pseudonym]) == 6
    assert (
        "'anna'" not in stored_text(database)
        and '"anna"' not in stored_text(database)
        and "api:anna:" not in stored_text(database)
    )
    assert "annabel" in stored_text(database)
    (submitted,) = [each.event for each in records.log.read(STREAM) if getattr(each.event, "study", "") == MINE][:1]
    assert isinstance(submitted, e.StudySubmitted) and submitted.by == pseudonym
    after = fold([each.event for each in records.log.read(STREAM)])
    assert after.nodes == before.nodes and after.studies[THEIRS] == before.studies[THEIRS]
    numbered = [(each.version, each.event) for each in records.log.read(STREAM)]
    assert replay(numbered, MINE).difference is None


def test_a_name_is_erased_in_actions_of_its_agent(database: Database) -> None:
    records = two_signed_studies(database)
    note = c.AddNote(study=MINE, trial=None, text="found", at=3.0, by="anna/agent")
    write = Write(stream=STREAM, decide=lambda plan: decide(plan, note), at=3.0, by="anna/agent")
    transact(records.log, Plans(records.log), write)
    pseudonym, count = erase_person(database, "anna")
    (last,) = records.log.read(STREAM)[-1:]
    assert (last.by, getattr(last.event, "by", "")) == (f"{pseudonym}/agent",) * 2 and count == 7
    assert "anna/agent" not in stored_text(database)


def test_who_suggested_a_trial_is_erased_with_the_suggestion(database: Database) -> None:
    """Once both kept the name: the suggestion in its own event, and the trial in its reason."""
    records = two_signed_studies(database)
    begun = c.Start(hp={"lr": 0.1}, steps=2, reason={"by": "tuner", "suggestion": 0, "suggested_by": "anna"})
    ask(records, c.ApplyTunerActions(study=MINE, actions=(begun,)), "")
    pseudonym, _ = erase_person(database, "anna")
    assert '"anna"' not in stored_text(database)
    study = fold([each.event for each in records.log.read(STREAM)]).studies[MINE]
    assert (study.suggestions[0].by, study.trials[0].reason["suggested_by"]) == (pseudonym, pseudonym)


def test_notes_lose_their_text_and_stay(database: Database) -> None:
    records = two_signed_studies(database)
    assert erase_notes(database, MINE) == 2
    assert erase_notes(database, MINE) == 0
    plan = fold([each.event for each in records.log.read(STREAM)])
    assert [note.text for note in plan.studies[MINE].notes] == [ERASED_TEXT]
    assert [note.text for note in plan.studies[THEIRS].notes] == ["good!"]


@pytest.mark.slow
def test_no_erased_text_is_left_in_the_files_of_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    two_signed_studies(database).close()
    environment = {**os.environ, "STAGETREE_DATABASE_URL": sqlite_url}
    for what in (["--person", "anna"], ["--notes", MINE]):
        command = [sys.executable, "-m", "stagetree", "erase", *what, "--yes"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert "anna is erased-" in done.stdout or done.stdout == "2 notes erased\n"
    files = b"".join(path.read_bytes() for path in tmp_path.glob("log.db*"))
    assert b"theirs" in files and SECRET.encode() not in files and b'"anna"' not in files and b"api:anna:" not in files
