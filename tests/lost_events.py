"""A database without its last commits, as after a fail-over to a replica that lacks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import select, text

from app.events.file_records import FileLog
from app.events.log import EventLog
from app.events.memory import MemoryLog, MemoryRecords
from app.events.records import Records
from app.events.sql_log import SqlLog, SqlRecords
from app.events.tables import metadata

WITHOUT_THE_LAST = (
    "DELETE FROM events WHERE position > :head",
    "UPDATE log_head SET position = :head",
    "DELETE FROM streams WHERE stream NOT IN (SELECT stream FROM events)",
    "UPDATE streams SET version = (SELECT max(version) FROM events WHERE events.stream = streams.stream)",
)


@contextmanager
def lose_appends(log: EventLog) -> Iterator[None]:
    """At the end of the block, the log loses the events appended in it. Other rows of a database stay."""
    head, put_back = log.head(), log.replica() if isinstance(log, MemoryLog) else None
    yield
    if put_back is not None:
        put_back()
        return
    log = log.all if isinstance(log, FileLog) else log
    assert isinstance(log, SqlLog)
    with log.database.write() as session:
        for statement in WITHOUT_THE_LAST:
            session.execute(text(statement), {"head": head})


def copy_tables(records: Records) -> Callable[[], None]:
    """A function that puts all present rows and events back."""
    if isinstance(records, MemoryRecords):
        return records.replica()
    assert isinstance(records, SqlRecords)
    engine, tables = records.database.engine, metadata.sorted_tables
    with engine.connect() as connection:
        kept = {table: [dict(row) for row in connection.execute(select(table)).mappings()] for table in tables}

    def put_back() -> None:
        with engine.begin() as connection:
            for table, rows in kept.items():
                connection.execute(table.delete())
                if rows:
                    connection.execute(table.insert(), rows)

    return put_back
