"""A store of any release is upgraded to this version, and downgraded again, without a lost event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from assignments import FENCE
from sqlalchemy import Boolean, Float, Integer, MetaData, text

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.terms import StudyId
from app.events.database import Database, migration_config
from app.events.plans import Plans
from app.events.records import Write, transact
from app.events.schema_numbers import UnreadableSchema, newest_schema
from app.events.sql_log import SqlRecords

ROOT = Path(__file__).parents[2]
HISTORY = [json.loads(line) for line in (ROOT / "tests" / "golden" / "history.jsonl").read_text().splitlines()]
"""Rows that 0.1.0 wrote."""

REVISIONS = sorted(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("0*.py"))
STREAM = "plan-of-then"


def fill_store(database: Database, revision: str) -> None:
    """A store as that version left it: a plan's log, the row of its study, a key, a chain that is over, and one under
    way.
    """
    with database.engine.begin() as connection:
        command.upgrade(migration_config(connection), revision)
        tables = MetaData()
        tables.reflect(connection)
        rows: dict[str, list[dict[str, Any]]] = {
            "events": [
                {"position": number, "stream": STREAM, "version": number, "data": data, "at": 1.0}
                | {"type": type, "schema_version": version}
                for number, (type, version, data) in enumerate(HISTORY, 1)
            ],
            "streams": [{"stream": STREAM, "version": len(HISTORY)}],
            "studies": [{"id": "s1", "stream": STREAM, "name": "a", "state": "running", "submitted_at": 1.0}],
            "idempotency": [{"key": "k", "fingerprint": "f", "stream": STREAM, "version": 2, "count": 1, "at": 1.0}],
            "chains": [
                {"chain": "c0", "stream": STREAM, "slot": "gpu0", "state": "done", "fence": 1, "owner": "anna"},
                {"chain": "c1", "stream": STREAM, "slot": "gpu0", "state": "running", "fence": 1, "owner": "anna"},
            ],
        }
        for name, its in rows.items():
            table = tables.tables[name]
            connection.execute(table.insert(), [{**_required_values(table), **row} for row in its])
        connection.execute(text("UPDATE log_head SET position = :count"), {"count": len(HISTORY)})


def _required_values(table: Any) -> dict[str, Any]:
    """A value for each column that must have one and has no default."""
    needed = [column for column in table.columns if not column.nullable and column.server_default is None]
    return {column.name: _some(column) for column in needed if not (column.primary_key and table.name == "events")}


def _some(column: Any) -> Any:
    if column.name in ("assignment", "extra_eval_steps", "branch_steps"):
        return {} if column.name == "assignment" else []
    if isinstance(column.type, Boolean):
        return False
    return 0 if isinstance(column.type, Integer | Float) else ""


def events_of(database: Database) -> list[Any]:
    """The stored rows."""
    query = text("SELECT position, stream, version, type, schema_version, data FROM events ORDER BY position")
    with database.engine.connect() as connection:
        return [
            (*row[:5], json.loads(row[5]) if isinstance(row[5], str) else row[5]) for row in connection.execute(query)
        ]


def test_all_revisions_are_listed() -> None:
    config = migration_config(None)  # type: ignore[arg-type]
    assert ScriptDirectory.from_config(config).get_current_head() == REVISIONS[-1]


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_store_of_an_earlier_release_is_read(empty_url: str, revision: str) -> None:
    database = Database(empty_url)
    fill_store(database, revision)
    written = events_of(database)
    database.create()
    records = SqlRecords(database)
    assert events_of(database) == written
    plan = Plans(records.log).get(STREAM)
    assert plan == fold([each.event for each in records.log.read(STREAM)]) and "s1" in plan.studies
    with records.read() as rows:
        row = rows.studies.find("s1")
    assert row is not None and (row.project, row.owner) == ("", "")
    paused = c.PauseStudy(study=StudyId("s1"))
    write = Write(stream=STREAM, decide=lambda plan: decide(plan, paused), at=2.0)
    transact(records.log, Plans(records.log), write, pause=lambda seconds: None)
    assert len(events_of(database)) == len(written) + 1
    records.close()


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_downgrade_loses_no_event(empty_url: str, revision: str) -> None:
    database = Database(empty_url)
    fill_store(database, REVISIONS[-1])
    written = events_of(database)
    for to, direction in ((revision, command.downgrade), ("head", command.upgrade)):
        with database.engine.begin() as connection:
            direction(migration_config(connection), to)
        assert events_of(database) == written
    records = SqlRecords(database)
    assert "s1" in Plans(records.log).get(STREAM).studies
    records.close()


@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_chain_under_way_stays_its_workers_through_an_upgrade(empty_url: str, revision: str) -> None:
    """A scheduler of the earlier release that still runs may assign one."""
    database = Database(empty_url)
    fill_store(database, revision)
    tables = MetaData()
    tables.reflect(database.engine)
    database.create()
    records = SqlRecords(database)
    with records.write() as rows:
        rows.chains.heartbeat("c1", FENCE, 60.0, 4)
        rows.chains.report("c1", FENCE)
    chains = tables.tables["chains"]
    with database.engine.begin() as connection:
        new = {"chain": "c2", "stream": STREAM, "slot": "gpu1", "state": "ready"}
        connection.execute(chains.insert(), {**_required_values(chains), **new})
    with records.write() as rows:
        rows.chains.report("c2", rows.chains.claim("c2", "berta", 60.0).fence)
    records.close()


@pytest.mark.parametrize(
    ("number", "maker", "instead"),
    [
        ("0001", "an unreleased", "use a new --dir or database, or delete this one."),
        ("0017", "an unreleased", "use a new --dir or database, or delete this one."),
        ("9999", "a newer", "use that version, or a new --dir or database."),
    ],
)
def test_a_store_of_no_release_is_refused_with_a_remedy(empty_url: str, number: str, maker: str, instead: str) -> None:
    database = Database(empty_url)
    database.create()
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :number"), {"number": number})
    with pytest.raises(UnreadableSchema) as refused:
        database.create()
    said = str(refused.value)
    assert said.startswith("The database ") and f"by {maker} version of stagetree (its schema is {number})" in said
    assert f": {instead}" in said
    database.dispose()
    opened = Database(empty_url)
    with pytest.raises(UnreadableSchema, match=f"its schema is {number}"), opened.read():
        pass
    opened.dispose()


def test_the_newest_schema_is_known_without_alembic(empty_url: str) -> None:
    """Once commands that read a store imported all of Alembic for a number in the name of a file."""
    database = Database(empty_url)
    assert database.schema() is None
    database.create()
    with database.engine.begin() as connection:
        head = ScriptDirectory.from_config(migration_config(connection)).get_current_head()
    assert database.schema() == newest_schema() == head
    database.dispose()
