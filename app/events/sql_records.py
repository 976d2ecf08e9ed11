"""The log and the rows in a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.events.database import Database
from app.events.log.sql import SqlLog
from app.events.rows.sql_rows import Rows


class SqlRecords:
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
