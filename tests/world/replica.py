"""The replica of a simulated database, which may lack its last commits when it takes its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from copy import copy
from typing import Any

from app.events.database import SQLITE, Database
from app.events.memory import MemoryRecords
from app.events.records import Records, SqlRecords

PutBack = Callable[[], None]
"""Makes the records what they were."""

SHARED = {"lock", "clock", "_undo"}
"""What tables have besides rows."""


def copy_records(records: Records) -> PutBack:
    """No transaction may be under way, now or when they are put back."""
    if isinstance(records, SqlRecords):
        return _copy_file(records.database)
    assert isinstance(records, MemoryRecords)
    tables = records._tables
    parts = [records.log, tables, *(each for each in vars(tables).values() if hasattr(each, "revision"))]
    kept = [(part, _rows_of(part)) for part in parts]

    def put_back() -> None:
        for part, rows in kept:
            vars(part).update(rows)

    return put_back


def _rows_of(part: object) -> dict[str, Any]:
    parts = {name: each for name, each in vars(part).items() if name not in SHARED}
    return {name: _copied(each) for name, each in parts.items()}


def _copied(value: Any) -> Any:
    """Containers are copied; rows and events never change."""
    if isinstance(value, dict):
        other = copy(value)
        for key, each in value.items():
            other[key] = _copied(each)
        return other
    return copy(value) if isinstance(value, list | set) else value


def _copy_file(database: Database) -> PutBack:
    replica = SQLITE.connect(":memory:")
    with closing(database.engine.raw_connection()) as connection:
        connection.driver_connection.backup(replica)  # type: ignore[union-attr]

    def put_back() -> None:
        with closing(replica), closing(database.engine.raw_connection()) as connection:
            replica.backup(connection.driver_connection)

    return put_back
