"""Reading a file without SQLAlchemy equals reading with it. The suite of all logs runs on it, too."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from assignments import WORK
from transactions import TTL

from app.domain.events import StudyStruck, StudySubmitted
from app.events import archive
from app.events.file_records import FileRecords
from app.events.rows import StudyRecord
from app.events.schema_numbers import UnreadableSchema, newest_schema
from app.outages import DatabaseUnavailable


@pytest.fixture
def records(sqlite_url: str) -> Iterator[FileRecords]:
    opened = FileRecords(Path(sqlite_url.removeprefix("sqlite:///")))
    yield opened
    opened.close()


STUDIES = [
    StudyRecord(id="a", stream="p", name="é", state="running", submitted_at=1.5, tags=["x", "y"], audited=True),
    StudyRecord(id="b", stream="p", name="b", state="failed", submitted_at=1.5, begins={"study": "a"}, slots_due=0.5),
    StudyRecord(id="c", stream="q", name="c", state="completed", submitted_at=0.5, project="p", owner="o"),
]


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_rows_equal_the_rows_that_sqlalchemy_reads(records: FileRecords, is_scheduled: bool) -> None:
    with records.write() as rows:
        for study in STUDIES:
            rows.studies.add(study)
        for chain, stream in (("one", "p"), ("two", "q"), ("over", "p")):
            rows.slots.take(chain, "anna", instead_of=None, device="cpu", host="here", pid=1)
            rows.chains.assign(chain, stream, chain, WORK, TTL)
        rows.chains.ask_evaluation("one", [3, 4])
        rows.slots.describe("one", "anna", trainers={"t": "1"}, note="waits")
        if is_scheduled:
            rows.schedulers.record_tick("o", "here", 1, {"wanted": 2}, held_up={"p": "error"})
        rows.chains.end("over")
    with records.read() as rows, records.all.read() as all_rows:
        for after, limit in ((None, 100), (None, 2), ("a", 5), ("b", 1), ("none", 9)):
            assert rows.studies.page(after, limit) == all_rows.studies.page(after, limit)
        for name in "abcd":
            assert rows.studies.find(name) == all_rows.studies.find(name)
        for stream in (None, "p", "q", "r"):
            assert rows.chains.live(stream) == all_rows.chains.live(stream)
        assert [chain.chain for chain in rows.chains.live()] == ["one", "two"]
        assert rows.schedulers.last_report() == all_rows.schedulers.last_report()
        assert rows.schedulers.last_tick() == all_rows.schedulers.last_tick()
        for within in (100.0, -1.0):
            assert rows.slots.alive(within) == all_rows.slots.alive(within)
        assert abs(rows.now() - all_rows.now()) < 60
        assert rows.slots.all() == all_rows.slots.all() and rows.chains.get("over") == all_rows.chains.get("over")


def test_events_of_an_archived_plan_are_found(records: FileRecords) -> None:
    log = records.log
    written = [
        *log.append("p", [StudySubmitted(study="s", spec={"name": "s"}, at=1.0)], expected=0, at=1.0),
        *log.append("p", [StudyStruck(study="s", reason="", at=2.0)], expected=1, at=2.0),
    ]
    assert log.read("p") == written and log.struck_studies("p") == {"s"} and log.version("p") == 2
    with records.write() as rows:
        rows.studies.set_state("s", "completed")
    assert archive.archive(records.all.database, "p", 3.0) is not None
    assert log.read("p") == written and log.read("p", after=1, limit=1) == written[1:]
    assert log.struck_studies("p") == {"s"} and log.version("p") == 0


def test_the_schema_is_checked(records: FileRecords, tmp_path: Path, sqlite_url: str) -> None:
    assert records.schema() == newest_schema()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UnreadableSchema, match="by a newer version of stagetree"):
        records.schema()
    sqlite3.connect(tmp_path / "empty.db").close()
    assert FileRecords(tmp_path / "empty.db").schema() is None


def test_an_error_of_the_database_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_text("no database" * 100)
    with pytest.raises(DatabaseUnavailable, match="cannot be used: file is not a database"):
        FileRecords(tmp_path / "no.db").schema()
    with pytest.raises(DatabaseUnavailable, match="waits for its migrations"):
        FileRecords(tmp_path / "empty.db").log.version("p")


def test_reading_imports_no_sqlalchemy(records: FileRecords, sqlite_url: str) -> None:
    """That import takes a quarter of a second, and the tables half as much."""
    records.log.append("p", [StudySubmitted(study="s", spec={"name": "s"}, at=1.0)], expected=0, at=1.0)
    code = f"""
import sys
from pathlib import Path
from app.events.file_records import FileRecords
records = FileRecords(Path({sqlite_url.removeprefix("sqlite:///")!r}))
with records.read() as rows:
    found = rows.studies.page(), rows.studies.find("s"), rows.chains.live(), rows.slots.alive(1.0), rows.now()
print(len(records.log.read("p")), "sqlalchemy" in sys.modules)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "1 False\n"
