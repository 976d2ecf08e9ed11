"""The rows beside the log, for tests: each call a transaction of its own, at a time of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.events.database import Database
from app.events.records import SqlRecords
from app.events.rows import has_expired

TTL = 60.0


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


class Transactions:
    """Each call of a method of `slots`, `chains` or `studies` is a transaction of its own."""

    def __init__(self, database: Database, table: str = "") -> None:
        self.database, self.table = database, table

    def expired(self) -> list[str]:
        """The chains whose lease has run out."""
        with SqlRecords(self.database).read() as rows:
            return [row.chain for row in rows.chains.live() if has_expired(row.lease_until, rows.now())]

    def __getattr__(self, name: str) -> Any:
        return self._method(name) if self.table else Transactions(self.database, name)

    def _method(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            with SqlRecords(self.database).write() as rows:
                return getattr(getattr(rows, self.table), name)(*args, **named)

        return call
