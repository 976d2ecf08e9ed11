"""The log in memory, alone or with the rows beside it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

from app.domain.events import ChainEnded, PackingProfiled, RanksProfiled, StageFailed
from app.domain.evolve import struck_studies
from app.domain.terms import FAILURES, StudyId
from app.events.log import (
    Append,
    EventLog,
    StoredEvent,
    Used,
    VersionConflict,
    assign_positions,
    check_not_shorter,
    project,
)
from app.events.memory.chains import Table, Tables
from app.events.memory.rows import MemoryRows


class MemoryRecords:
    """`Records` in one process. clock: the clock of leases, in real or virtual Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._tables = Tables(clock)
        self._rows = MemoryRows(self._tables)
        self.log = MemoryLog(self._tables)

    @contextmanager
    def read(self) -> Iterator[MemoryRows]:
        with self._tables.lock:
            yield self._rows

    @contextmanager
    def write(self) -> Iterator[MemoryRows]:
        with self._tables.transaction():
            yield self._rows

    def close(self) -> None: ...

    def replica(self) -> Callable[[], None]:
        """A function that puts all present rows and events back: later commits are lost."""
        tables = [each for each in vars(self._tables).values() if isinstance(each, Table)]
        return copy_parts([self.log, self._tables, *tables])


class MemoryLog(EventLog):
    """`EventLog` in one process, on its own tables unless some are given. Events are not encoded."""

    def __init__(self, tables: Tables | None = None, clock: Callable[[], float] = time.time) -> None:
        self._tables = tables or Tables(clock)
        self._rows = MemoryRows(self._tables)
        self._all: list[StoredEvent] = []
        self._streams: dict[str, list[StoredEvent]] = {}
        self._keys: dict[str, Used] = {}

    def write(self, append: Append) -> list[StoredEvent]:
        once = append.idempotency
        with self._tables.transaction():
            if once is not None and (recorded := self.find_by_key(once.key, once.fingerprint)) is not None:
                return recorded
            if append.alongside is not None:
                append.alongside(self._rows)
            append = self._decide(append)
            project(self._rows, append.stream, append.events)
            return self._add(append)

    def _decide(self, append: Append) -> Append:
        """The append with the events that are decided on now. Raises `VersionConflict`."""
        version = self.version(append.stream)
        if append.decide is not None:
            check_not_shorter(append, version)
            events = append.decide(self.read(append.stream, after=append.expected or 0))
            return replace(append, events=events, expected=version)
        if append.events and append.expected not in (None, version):
            raise VersionConflict(f"Stream {append.stream} is at version {version}, not {append.expected}.")
        return append

    def _add(self, append: Append) -> list[StoredEvent]:
        version = self.version(append.stream)
        recorded = assign_positions(append, append.events, len(self._all), version)
        if (once := append.idempotency) is not None:
            self._keys[once.key] = Used(once.fingerprint, append.stream, version + len(recorded), len(recorded))
        if recorded:
            self._all.extend(recorded)
            self._streams.setdefault(append.stream, []).extend(recorded)
            self._tables.versions[append.stream] = recorded[-1].version
        return recorded

    def replica(self) -> Callable[[], None]:
        """As that of `MemoryRecords`, of the events alone."""
        return copy_parts([self])

    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        with self._tables.lock:
            if (used := self._keys.get(key)) is None:
                return None
            used.check(fingerprint)
            return self.read(used.stream, after=used.version - used.count, limit=used.count)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        with self._tables.lock:
            return self._streams.get(stream, [])[after : None if limit is None else after + limit]

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        with self._tables.lock:
            return [(r.position, r.stream) for r in self._all[after : None if limit is None else after + limit]]

    def struck_studies(self, stream: str) -> frozenset[StudyId]:
        return struck_studies(each.event for each in self.read(stream))

    def profiles(self) -> list[StoredEvent]:
        with self._tables.lock:
            return [each for each in self._all if isinstance(each.event, PackingProfiled | RanksProfiled)]

    def count_failures(self, after: int, until: int) -> dict[str, int]:
        with self._tables.lock:
            events = [each.event for each in self._all[after:until]]
        kinds = [event.kind for event in events if isinstance(event, StageFailed)]
        outcomes = [event.outcome for event in events if isinstance(event, ChainEnded)]
        return {str(kind): count for kind, count in Counter([*kinds, *outcomes]).items() if kind in FAILURES}

    def version(self, stream: str) -> int:
        with self._tables.lock:
            return len(self._streams.get(stream, ()))

    def head(self) -> int:
        with self._tables.lock:
            return len(self._all)

    def versions(self) -> dict[str, int]:
        with self._tables.lock:
            return {stream: len(self._streams[stream]) for stream in sorted(self._streams)}


SHARED = frozenset({"lock", "clock", "_undo"})
"""What tables have besides rows."""


def copy_parts(parts: Iterable[object]) -> Callable[[], None]:
    """A function that puts their present rows back. No transaction may be under way, neither now nor then."""
    kept = [(part, _rows(part)) for part in parts]

    def put_back() -> None:
        for part, rows in kept:
            vars(part).update(rows)

    return put_back


def _rows(part: object) -> dict[str, Any]:
    return {name: _copied(each) for name, each in vars(part).items() if name not in SHARED}


def _copied(value: Any) -> Any:
    """Containers are copied; rows and events never change."""
    if isinstance(value, dict):
        other = copy(value)
        for key, each in value.items():
            other[key] = _copied(each)
        return other
    return copy(value) if isinstance(value, list | set) else value
