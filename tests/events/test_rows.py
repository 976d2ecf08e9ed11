"""The rows of studies beside the log."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from app.events.database import Database
from app.events.rows import StudyRecord
from app.events.sql_rows import Studies


def study(id: str, stream: str, state: str) -> StudyRecord:
    return StudyRecord(id=id, stream=stream, name="n", state=state, submitted_at=1.0)


def test_studies_are_found_and_change(database: Database) -> None:
    with database.write() as session:
        Studies(session).add(StudyRecord(id="s1", stream="plan", name="first", state="running", submitted_at=1.0))
        Studies(session).set_state("s1", "completed")
    with database.read() as session:
        row = Studies(session).find("s1")
        assert Studies(session).find("s2") is None
    assert (row.id, row.stream, row.name, row.state, row.submitted_at) == ("s1", "plan", "first", "completed", 1.0)


@pytest.mark.slow
def test_streams_with_work_are_found_by_an_index(database: Database) -> None:
    with database.write() as session:
        for number, state in enumerate(["running", "paused", "completed", "failed", "cancelled", "running"]):
            Studies(session).add(
                StudyRecord(id=f"s{number}", stream=f"plan{number % 5}", name="n", state=state, submitted_at=1.0)
            )
        assert Studies(session).active_streams() == ["plan0", "plan1"]
        for number in range(10, 2000):
            Studies(session).add(
                StudyRecord(id=f"s{number}", stream="old", name="n", state="completed", submitted_at=1.0)
            )
        session.execute(text("ANALYZE studies"))
    explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}[database.engine.dialect.name]
    query = (
        "SELECT DISTINCT stream FROM studies WHERE state NOT IN ('completed', 'failed', 'cancelled') ORDER BY stream"
    )
    with database.read() as session:
        assert "ix_studies_active" in str(session.execute(text(explain + query)).all())
