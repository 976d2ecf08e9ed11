"""The rows beside the log: studies and snapshots."""

from __future__ import annotations

import pytest
from sqlalchemy import text, update

from app.events import snapshots, studies
from app.events.database import Database


def test_studies_are_found_and_change(database: Database) -> None:
    with database.write() as session:
        studies.add(session, "s1", "plan", "first", "running", 1.0)
        studies.set_state(session, "s1", "completed")
    with database.read() as session:
        row = studies.find(session, "s1")
        assert studies.find(session, "s2") is None
    assert (row.id, row.stream, row.name, row.state, row.submitted_at) == ("s1", "plan", "first", "completed", 1.0)


def test_studies_are_listed_newest_first_in_pages(database: Database) -> None:
    with database.write() as session:
        for id, at in (("a", 1.0), ("d", 2.0), ("b", 2.0), ("c", 3.0)):
            studies.add(session, id, "plan", "n", "running", at)
    with database.read() as session:
        assert [row.id for row in studies.page(session)] == ["c", "d", "b", "a"]
        assert [row.id for row in studies.page(session, None, 2)] == ["c", "d"]
        assert [row.id for row in studies.page(session, "d", 2)] == ["b", "a"]
        assert studies.page(session, "a", 2) == studies.page(session, "unknown", 2) == []


def test_streams_with_work_are_found_by_an_index(database: Database) -> None:
    with database.write() as session:
        for number, state in enumerate(["running", "paused", "completed", "failed", "cancelled", "running"]):
            studies.add(session, f"s{number}", f"plan{number % 5}", "n", state, 1.0)
        assert studies.active_streams(session) == ["plan0", "plan1"]
        for number in range(10, 2000):
            studies.add(session, f"s{number}", "old", "n", "completed", 1.0)
        session.execute(text("ANALYZE studies"))
    explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}[database.engine.dialect.name]
    query = (
        "SELECT DISTINCT stream FROM studies WHERE state NOT IN ('completed', 'failed', 'cancelled') ORDER BY stream"
    )
    with database.read() as session:
        assert "ix_studies_active" in str(session.execute(text(explain + query)).all())


def test_the_newest_snapshot_is_kept(database: Database) -> None:
    assert snapshots.load(database, "plan", "code") is None
    snapshots.save(database, "plan", 5, b"five", "code")
    snapshots.save(database, "plan", 9, b"nine", "code")
    snapshots.save(database, "plan", 7, b"seven", "code")  # a slower process
    assert snapshots.load(database, "plan", "code") == (9, b"nine")
    assert snapshots.load(database, "other", "code") is None


def test_a_snapshot_of_other_code_does_not_exist(database: Database) -> None:
    snapshots.save(database, "plan", 9, b"nine", "old")
    assert snapshots.load(database, "plan", "new") is None
    snapshots.save(database, "plan", 7, b"seven", "new")
    assert snapshots.load(database, "plan", "new") == (7, b"seven")


@pytest.mark.parametrize("damage", [{"state": b"nina"}, {"sha256": "x"}])
def test_a_damaged_snapshot_does_not_exist(database: Database, damage: dict[str, object]) -> None:
    snapshots.save(database, "plan", 9, b"nine", "code")
    with database.write() as session:
        session.execute(update(snapshots.SNAPSHOTS).values(damage))
    assert snapshots.load(database, "plan", "code") is None
