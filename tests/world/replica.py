"""The replica of a simulated database, which may lack its last commits when it takes its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from app.events.database import Database
from app.events.memory import MemoryRecords
from app.events.records import Records
from app.events.sql_log import SqlRecords
from app.events.sqlite import SQLITE

PutBack = Callable[[], None]
"""Restores the copied records."""


def copy_records(records: Records) -> PutBack:
    """No transaction may be under way, now or when they are put back."""
    if isinstance(records, SqlRecords):
        return _copy_file(records.database)
    assert isinstance(records, MemoryRecords)
    return records.replica()


def _copy_file(database: Database) -> PutBack:
    replica = SQLITE.connect(":memory:")
    with closing(database.engine.raw_connection()) as connection:
        connection.driver_connection.backup(replica)  # type: ignore[union-attr]

    def put_back() -> None:
        with closing(replica), closing(database.engine.raw_connection()) as connection:
            replica.backup(connection.driver_connection)

    return put_back
