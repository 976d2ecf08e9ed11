"""Time, a database and a store that do what a test wants, when it wants that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from threading import Event as Flag
from threading import RLock
from typing import Any

from app.domain import events as e
from app.events.log import VersionConflict
from app.events.sql_log import SqlRecords
from app.events.sql_rows import Rows
from app.outages import DatabaseUnavailable
from app.storage.object_store import LocalStore


class Clock:
    """The clock of all parts, databases included. It advances when a part waits, and when a test moves it."""

    def __init__(self) -> None:
        self._now, self._lock = 1_000_000.0, RLock()
        self.waits = 0
        self.on_wait: Callable[[int], None] = lambda waits: None

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        with self._lock:
            self.waits += 1
            self._now += seconds
            self.on_wait(self.waits)


class Faults:
    """What goes wrong, and when: `before[...]` is called once, before a fact of that type is recorded."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.away_until = 0.0
        self.before: dict[type, Callable[[], None]] = {}
        self.lost_answers = self.lost_races = self.refusals = 0
        self.error: Callable[[], Exception] = lambda: DatabaseUnavailable("The database is away.")

    def away_for(self, seconds: float) -> None:
        self.away_until = self.clock.now() + seconds

    def check(self) -> None:
        if self.clock.now() < self.away_until:
            self.refusals += 1
            raise self.error()

    def announce(self, facts: Iterable[e.Event]) -> None:
        for fact in facts:
            if (hook := self.before.pop(type(fact), None)) is not None:
                hook()


class FaultyLog:
    def __init__(self, log: Any, faults: Faults) -> None:
        self._log, self._faults = log, faults

    def append(self, stream: str, events: Any, **more: Any) -> Any:
        self._faults.announce(events)
        self._faults.check()
        if self._faults.lost_races:
            self._faults.lost_races -= 1
            raise VersionConflict("The transaction lost against another one.")
        recorded = self._log.append(stream, events, **more)
        if self._faults.lost_answers:
            self._faults.lost_answers -= 1
            raise DatabaseUnavailable("The connection was lost while the commit was under way.")
        return recorded

    def __getattr__(self, name: str) -> Any:
        self._faults.check()
        return getattr(self._log, name)


class FaultyRecords:
    """As a slot sees the database."""

    def __init__(self, records: SqlRecords, faults: Faults) -> None:
        self._records, self._faults = records, faults
        self.log = FaultyLog(records.log, faults)

    def read(self) -> AbstractContextManager[Rows]:
        self._faults.check()
        return self._records.read()

    def write(self) -> AbstractContextManager[Rows]:
        self._faults.check()
        return self._records.write()

    def close(self) -> None:
        self._records.close()


class ClosedStore:
    """It takes nothing until it is back."""

    def __init__(self) -> None:
        self.reached, self.back = Flag(), Flag()

    def __call__(self, key: str) -> None:
        self.reached.set()
        assert self.back.wait(60)


class FaultyStore(LocalStore):
    """hooks: called before each read or write, with the key; they raise the errors of the store's client."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.before_write: Callable[[str], None] = lambda key: None
        self.before_read: Callable[[str], None] = lambda key: None
        self.writes, self.reads = list[str](), list[str]()

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        self.before_write(key)
        super().write(key, parts)
        self.writes.append(key)

    def read(self, key: str) -> Iterator[bytes]:
        self.before_read(key)
        self.reads.append(key)
        yield from super().read(key)

    def open(self, key: str) -> int | None:
        self.before_read(key)
        self.reads.append(key)
        return super().open(key)
