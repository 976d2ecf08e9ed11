"""Old and unused rows are deleted; young, live and needed ones stay."""

from __future__ import annotations

from assignments import FENCE, WORK
from sqlalchemy import text
from transactions import TTL, Clock, Transactions

from app.domain.events import StudyPaused
from app.events.database import Database
from app.events.housekeeping import BATCH, DAY, Ages, clean
from app.events.sql_log import SqlLog

AGES = Ages(keys=7.0, chains=5.0, workers=1.0)
FACT = StudyPaused(study="s")


def test_old_rows_are_deleted(rows: Transactions, clock: Clock, clocked_database: Database) -> None:
    log = SqlLog(clocked_database)
    log.append("p", [FACT], expected=None, at=clock.at, key="old")
    for chain, slot in (("done", "gpu0"), ("ended", "gpu1")):
        rows.chains.assign(chain, "p", slot, WORK, TTL)
    rows.chains.claim("done", "anna", TTL)
    rows.chains.finish("done", FENCE)
    rows.chains.end("ended")
    rows.schedulers.record_tick("old", "host", 1)
    clock.at += 8 * DAY
    rows.chains.assign("live", "p", "gpu1", WORK, TTL)
    rows.schedulers.record_tick("new", "host", 2)
    log.append("p", [FACT], expected=None, at=clock.at, key="new")
    assert clean(clocked_database, AGES) == {"idempotency": 1, "chains": 2, "slots": 1, "schedulers": 1}
    assert [row.chain for row in rows.chains.live()] == ["live"]
    assert [row.name for row in rows.slots.all()] == ["gpu1"]  # its chain must end first
    assert log.find_by_key("old") is None and log.find_by_key("new")
    assert rows.schedulers.last_tick() == clock.at
    assert log.head() == 2  # a fact is never removed


def test_only_a_dead_scheduler_is_deleted(rows: Transactions, clock: Clock) -> None:
    rows.schedulers.record_tick("one", "host", 1)
    clock.at += 1
    rows.schedulers.record_tick("other", "host", 2)
    rows.schedulers.forget("other")
    assert rows.schedulers.last_tick() == clock.at - 1


def test_young_and_live_rows_stay(rows: Transactions, clock: Clock, clocked_database: Database) -> None:
    SqlLog(clocked_database).append("p", [FACT], expected=None, at=clock.at, key="k")
    rows.chains.assign("c", "p", "gpu0", WORK, TTL)
    rows.chains.claim("c", "anna", TTL)
    rows.schedulers.record_tick("one", "host", 1)
    clock.at += 0.9 * DAY
    assert not any(clean(clocked_database, AGES).values())
    clock.at += 100 * DAY
    rows.slots.touch("gpu1", "berta")
    clean(clocked_database, AGES)
    assert [row.name for row in rows.slots.all()] == ["gpu0", "gpu1"]
    assert rows.chains.get("c").state == "running"  # its lease has expired, but only the scheduler ends it


def test_many_rows_are_deleted_in_batches(clocked_database: Database, clock: Clock) -> None:
    with clocked_database.write() as session:
        for number in range(BATCH + 1):
            row = {"key": f"k{number}", "at": clock.at}
            session.execute(text("INSERT INTO idempotency VALUES (:key, '', 'p', 1, 0, :at)"), row)
    clock.at += 8 * DAY
    assert clean(clocked_database, AGES)["idempotency"] == BATCH + 1
