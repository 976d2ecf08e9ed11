"""The rows beside the log, for tests: each call is a transaction, and the test sets the time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.events.database import Database
from app.events.rows import ChainRecord, RowChanges, RowsPort, SlotRecord, has_expired
from app.events.sql_log import SqlRecords

TTL = 60.0


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def count_winners(attempt: Callable[[int], object], refusal: type[Exception]) -> int:
    """How many of four threads succeed that try at once."""

    def is_refused(number: int) -> bool:
        try:
            attempt(number)
        except refusal:
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        return [*pool.map(is_refused, range(4))].count(False)


def free_slots(rows: RowsPort, seen_within: float = TTL) -> list[str]:
    """The slots that may be given work."""
    alive, at = rows.slots.alive(seen_within), rows.now()
    return [slot.name for slot in alive if slot.is_free and not slot.is_quarantined(at)]


class CachedRows:
    """Chains and slots of a reader that reads only changes."""

    def __init__(self) -> None:
        self.mark: object = None
        self.chains, self.slots = dict[str, ChainRecord](), dict[str, SlotRecord]()
        self.last: RowChanges | None = None

    def look(self, rows: RowsPort) -> None:
        self.last = rows.changes(self.mark)
        self.mark = self.last.mark
        for kept, changed in ((self.chains, self.last.chains), (self.slots, self.last.slots)):
            for name, row in changed.items():
                kept.pop(name, None)
                if row is not None:
                    kept[name] = row  # type: ignore[assignment]

    def is_right(self, rows: RowsPort) -> bool:
        """Whether the cached rows equal a full read."""
        chains, slots = ({row.chain: row for row in rows.chains.live()}, {row.name: row for row in rows.slots.all()})
        return self.chains == chains and self.slots == slots


class Transactions:
    """Each call of a method of `slots`, `chains` or `studies` is a transaction of its own."""

    def __init__(self, database: Database, table: str = "") -> None:
        self.database, self.table = database, table

    def expired_chains(self) -> list[str]:
        """The chains whose lease has run out."""
        with SqlRecords(self.database).read() as rows:
            return [row.chain for row in rows.chains.live() if has_expired(row.lease_until, rows.now())]

    def free_slots(self, seen_within: float = TTL) -> list[str]:
        """The slots that may be given work."""
        with SqlRecords(self.database).read() as rows:
            return free_slots(rows, seen_within)

    def __getattr__(self, name: str) -> Any:
        return self._method(name) if self.table else Transactions(self.database, name)

    def _method(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            with SqlRecords(self.database).write() as rows:
                return getattr(getattr(rows, self.table), name)(*args, **named)

        return call
