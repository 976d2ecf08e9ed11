"""No caller waits for ever for a database: dead connections, frozen servers, frozen writers, lost races."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from proxies import Proxy, start_proxy
from sqlalchemy import Engine, make_url, text

from app.domain.events import StudyPaused
from app.events.database import Database
from app.events.records import ATTEMPTS, change
from app.events.rows import StudyRecord
from app.events.sql_log import SqlRecords
from app.events.sql_rows import Rows
from app.events.sqlite import SQLITE
from app.outages import DatabaseUnavailable, LostRace
from stagetree.backoff import Backoff

PATIENCE = 1.0
LONGER = 3.0
"""The server's timeout; the client waits half as long again."""

FACT = StudyPaused(study="s")


@pytest.fixture
def far(postgres_url: str) -> Iterator[tuple[SqlRecords, Proxy]]:
    """A database behind a failing network, and that network. A connection is open."""
    proxy, url = start_proxy(postgres_url)
    database = Database(url, patience=PATIENCE)
    records = SqlRecords(database)
    records.log.append("p", [FACT], expected=0, at=1.0)
    yield records, proxy
    database.dispose()
    proxy.close()


@pytest.mark.parametrize("fault", ["freeze", "refuse"])
def test_an_unavailable_server_fails_at_once(far: tuple[SqlRecords, Proxy], fault: str) -> None:
    records, proxy = far
    getattr(proxy, fault)()
    for use in (records.log.head, lambda: records.log.append("p", [FACT], expected=None, at=1.0)):
        with pytest.raises(DatabaseUnavailable):
            use()
    proxy.heal()
    assert records.log.append("p", [FACT], expected=1, at=1.0)


@pytest.mark.parametrize("fault", ["forget", "reset"])
def test_a_silently_closed_connection_is_replaced(far: tuple[SqlRecords, Proxy], fault: str) -> None:
    """The first query may still fail in the middle; the next one works."""
    records, proxy = far
    getattr(proxy, fault)()
    assert records.log.head() == 1
    assert records.log.append("p", [FACT], expected=1, at=1.0)


def test_a_connection_lost_in_a_transaction_is_reported(far: tuple[SqlRecords, Proxy]) -> None:
    records, proxy = far
    with pytest.raises(DatabaseUnavailable, match="did not answer within"), records.write() as rows:
        rows.studies.add(StudyRecord(id="s", stream="p", name="n", state="running", submitted_at=1.0))
        proxy.forget()
        rows.studies.set_state("s", "paused")
    with records.read() as rows:
        assert rows.studies.find("s") is None


def test_a_frozen_writer_does_not_block_others(postgres_url: str) -> None:
    """Like a machine paused between append and commit: it locks the head's row, until the server ends its session."""
    frozen, other = (SqlRecords(Database(postgres_url, patience=p)) for p in (PATIENCE, 20.0))
    with pytest.raises(DatabaseUnavailable), frozen.database.write() as session:
        session.execute(text("UPDATE log_head SET position = position + 1"))
        other.log.append("q", [FACT], expected=0, at=1.0)
    assert other.log.head() == 1
    for records in (frozen, other):
        records.close()


def test_the_wait_for_a_lock_is_bounded(postgres_url: str) -> None:
    holder, waiter = (SqlRecords(Database(postgres_url, patience=p)) for p in (20.0, LONGER))
    with holder.database.write() as session:
        session.execute(text("UPDATE log_head SET position = position"))
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            waiter.log.append("p", [FACT], expected=0, at=1.0)
    assert waiter.log.append("p", [FACT], expected=0, at=1.0)
    for records in (holder, waiter):
        records.close()


def test_a_demoted_primary_is_unavailable(postgres_url: str, postgres_admin: Engine) -> None:
    name = make_url(postgres_url).database
    with postgres_admin.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    records = SqlRecords(Database(postgres_url))
    assert records.log.head() == 0
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        records.log.append("p", [FACT], expected=0, at=1.0)
    with pytest.raises(DatabaseUnavailable, match="read-only"), records.write() as rows:
        rows.studies.add(StudyRecord(id="s", stream="p", name="n", state="running", submitted_at=1.0))
    records.close()


def test_a_full_pool_is_a_database_outage(postgres_url: str) -> None:
    database = Database(postgres_url, patience=LONGER)
    ended = suppress(DatabaseUnavailable)  # the server may end the idle transactions meanwhile
    with ended, ExitStack() as held, pytest.raises(DatabaseUnavailable, match="QueuePool"):
        for _ in range(100):  # more than the size of any pool here
            held.enter_context(database.read())
    database.dispose()


def test_a_transaction_that_lost_a_race_is_retried(postgres_url: str) -> None:
    """Two transactions that lock two rows crosswise: one is the victim, and neither caller notices."""
    records, met, done = SqlRecords(Database(postgres_url)), threading.Barrier(2), []
    with records.write() as rows:
        for study in "xy":
            rows.studies.add(StudyRecord(id=study, stream="p", name="n", state="running", submitted_at=1.0))

    def lock(order: str) -> None:
        tries = []

        def both(rows: Rows) -> None:
            tries.append(order)
            rows.studies.set_state(order[0], "paused")
            if len(tries) == 1:
                met.wait(60)
            rows.studies.set_state(order[1], "paused")

        change(records, both)
        done.append(len(tries))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lock, ["xy", "yx"]))
    assert max(done) > 1  # both, where the victim locks its first row again before the other one wakes
    records.close()


def test_a_repeatedly_lost_race_is_reported(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.events.records.ROW_RACES", Backoff(0.0, 0.0))
    records, tries = SqlRecords(Database(sqlite_url)), list[Rows]()

    def lose(rows: Rows) -> None:
        tries.append(rows)
        raise LostRace("another was faster")

    with pytest.raises(LostRace):
        change(records, lose)
    assert len(tries) == ATTEMPTS
    records.close()


def test_a_lost_race_without_a_retry_is_reported(postgres_url: str) -> None:
    records = SqlRecords(Database(postgres_url))
    with pytest.raises(LostRace), records.database.write() as session:
        session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"))
    records.close()


@pytest.mark.parametrize(("pragma", "said"), [("query_only = 1", "readonly"), ("max_page_count = 1", "full")])
def test_a_full_or_read_only_file_is_an_outage(sqlite_url: str, pragma: str, said: str) -> None:
    """The file is read-only, or its disk is full: the limit of pages cannot be below the file's pages."""
    records = SqlRecords(Database(sqlite_url))
    with records.database.read() as session:
        session.execute(text(f"PRAGMA {pragma}"))
    with pytest.raises(DatabaseUnavailable, match=said), records.write() as rows:
        rows.studies.add(StudyRecord(id="s", stream="p", name="n" * 100_000, state="running", submitted_at=1.0))
    records.close()


def test_a_locked_file_is_an_outage_after_the_timeout(sqlite_url: str) -> None:
    records = SqlRecords(Database(sqlite_url, patience=0.1))
    other = SQLITE.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailable, match="locked"), records.write():
        pass
    other.close()
    records.close()


@pytest.mark.parametrize("url", ["postgresql://me:s%C3%A9cret@127.0.0.1:1/log?password=hidden2", "sqlite:////no/x.db"])
def test_secrets_in_a_url_are_masked(url: str) -> None:
    with pytest.raises(DatabaseUnavailable) as error, Database(url).read():
        pass
    assert not any(secret in str(error.value) for secret in ("cret", "hidden2", "password", "me:"))
