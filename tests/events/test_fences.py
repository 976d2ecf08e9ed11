"""Fences: which worker may write for a chain, on both databases. Each fence has a test that fails without it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from assignments import WORK
from sqlalchemy import Connection, Engine, text
from stacks import wait_for
from transactions import TTL, Transactions

from app.events.database import Database
from app.events.rows import Fenced, Lease, LeaseFence
from app.events.sql_log import SqlRecords

WRITES = {
    "heartbeat": lambda rows, fence: rows.chains.heartbeat("c", fence, TTL, 99),
    "peek": lambda rows, fence: rows.chains.flags("c", fence),
    "advance": lambda rows, fence: rows.chains.advance("c", fence, 9),
    "release": lambda rows, fence: rows.chains.release("c", fence, {"late": True}),
    "finish": lambda rows, fence: rows.chains.finish("c", fence),
    "end": lambda rows, fence: rows.chains.end("c", fence),
    "report": lambda rows, fence: rows.chains.report("c", fence),
}


def state(rows: Transactions) -> tuple[object, object]:
    return rows.chains.get("c"), list(rows.slots.all())


def written(rows: Transactions, fence: LeaseFence) -> list[str]:
    """The writes that this fence allows; all others leave everything as it is."""
    allowed = list[str]()
    for name, write in WRITES.items():
        before = state(rows)
        try:
            write(rows, fence)
            allowed.append(name)
        except Fenced:
            assert state(rows) == before, name
    return allowed


def test_another_number_is_refused(rows: Transactions, lease: Lease) -> None:
    """Another owner's, and other reports, are in `tests/contract`."""
    assert [written(rows, replace(lease.fence, number=number)) for number in (0, 2)] == [[], []]


def test_a_zombie_is_refused(rows: Transactions, lease: Lease) -> None:
    """The state is part of the proof: a guessed number, or one read from the row, is not enough."""
    rows.chains.end("c")
    for number in (lease.fence.number, lease.fence.number + 1):
        assert written(rows, replace(lease.fence, number=number)) == []
    rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    assert written(rows, lease.fence) == []


def test_nothing_is_written_for_a_chain_that_was_not_claimed(rows: Transactions) -> None:
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    assert written(rows, LeaseFence(0, "")) == []


def test_a_saving_chain_may_record_only_late_facts(rows: Transactions, lease: Lease) -> None:
    rows.chains.finish("c", lease.fence)
    rows.chains.assign("d", "plan", "gpu0", WORK, TTL)
    assert written(rows, lease.fence) == ["report"]
    assert rows.slots.get("gpu0").chain == "d"


def test_a_slow_finish_does_not_free_a_reassigned_slot(
    rows: Transactions, lease: Lease, clocked_database: Database
) -> None:
    """If chain and slot ever disagree, the slot's own row counts."""
    with clocked_database.write() as session:
        session.execute(text("UPDATE slots SET chain = 'x' WHERE name = 'gpu0'"))
    rows.chains.finish("c", lease.fence)
    assert rows.slots.get("gpu0").chain == "x"


def waits_for_a_lock(database: Database, looking: Connection) -> bool:
    """Whether a transaction of the database waits for another one."""
    query = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name")
    return looking.execute(query, {"name": database.url.database}).first() is not None


def test_no_transaction_ends_a_chain_between_guard_and_commit(postgres_url: str, postgres_admin: Engine) -> None:
    """On SQLite there is one writer at a time; on PostgreSQL the row's lock makes the other wait."""
    records, order = SqlRecords(Database(postgres_url)), []
    with records.write() as rows:
        rows.slots.take("gpu0", "anna", instead_of=None, device="cuda:0", host="host", pid=1)
        rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
        fence = rows.chains.claim("c", "worker", TTL).fence

    def end() -> None:
        with records.write() as rows:
            rows.chains.end("c")
            order.append("ended")

    with ThreadPoolExecutor(1) as pool, postgres_admin.connect() as looking:
        with records.write() as rows:
            rows.chains.report("c", fence)
            ending = pool.submit(end)
            wait_for("the other", lambda: order or waits_for_a_lock(records.database, looking))
            order.append("written")
        ending.result(60)
    assert order == ["written", "ended"]
    records.close()


def test_concurrent_requests_for_steps_are_both_recorded(postgres_url: str, postgres_admin: Engine) -> None:
    records = SqlRecords(Database(postgres_url))
    with records.write() as rows:
        rows.slots.take("gpu0", "anna", instead_of=None, device="cuda:0", host="host", pid=1)
        rows.chains.assign("c", "plan", "gpu0", WORK, TTL)

    def ask() -> None:
        with records.write() as rows:
            rows.chains.ask_evaluation("c", [2])

    with ThreadPoolExecutor(1) as pool, postgres_admin.connect() as looking:
        with records.write() as rows:
            rows.chains.ask_evaluation("c", [1])
            asking = pool.submit(ask)
            wait_for("the other", lambda: waits_for_a_lock(records.database, looking))
        asking.result(60)
    with records.read() as rows:
        row = rows.chains.get("c")
    assert row is not None and row.extra_eval_steps == (1, 2)
    records.close()


def test_without_a_clock_the_database_gives_the_time(database: Database) -> None:
    records = SqlRecords(database)
    with records.read() as rows:
        assert rows.now() == pytest.approx(time.time(), abs=5)
        first = rows.now()
        time.sleep(0.02)
        assert rows.now() > first  # within one transaction, too
    with records.write() as rows:
        rows.slots.take("gpu0", "anna", instead_of=None, device="cpu", host="host", pid=1)
        rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
        assert rows.chains.claim("c", "worker", TTL).fence.number == 1
        assert rows.chains.get("c").lease_until == pytest.approx(time.time() + TTL, abs=5)
