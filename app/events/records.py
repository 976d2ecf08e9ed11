"""The log and the rows beside it: all that this service remembers, behind one door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from app.events.database import Database
from app.events.log import EventLog, SqlLog
from app.events.rows import Rows
from app.events.rows.ports import RowsPort


class Records(Protocol):
    """Safe to share between threads. Both transactions raise `DatabaseUnavailable`."""

    @property
    def log(self) -> EventLog: ...

    def read(self) -> AbstractContextManager[RowsPort]:
        """A transaction that changes nothing."""

    def write(self) -> AbstractContextManager[RowsPort]:
        """A transaction that commits at the end of the block, and leaves nothing behind when the block raises."""

    def close(self) -> None:
        """Close the connections that are not in use."""


class SqlRecords:
    """In a database."""

    def __init__(self, database: Database) -> None:
        self.database, self.log = database, SqlLog(database)

    @contextmanager
    def read(self) -> Iterator[Rows]:
        with self.database.read() as session:
            yield Rows(session)

    @contextmanager
    def write(self) -> Iterator[Rows]:
        with self.database.write() as session:
            yield Rows(session)

    def close(self) -> None:
        self.database.dispose()
