"""The log: facts in one order that every reader sees, without gaps, which is the order in which they were committed.

A database sequence does not give that order: a reader may see position 8 before 7 is committed, and miss 7. Here the
position comes from one row, `log_head`, that stays locked until the commit. Locks are always taken in one order: key,
rows of `alongside`, stream, head; the head last, so that it is held shortest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from threading import RLock
from typing import Any, Protocol

from sqlalchemy import Row, Select, select, update
from sqlalchemy.orm import Session

from app.away import LostRace
from app.domain.events import Event, StudyStruck
from app.domain.evolve import strikes
from app.domain.ids import StudyId
from app.events.appending import Encoded, put
from app.events.codec import decode, encode
from app.events.database import Database, DatabaseUnavailable, insert
from app.events.projections import project
from app.events.rows import Rows
from app.events.tables import EVENTS, HEAD, KEYS, STREAMS

Alongside = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event in its place: `position` among all events, `version` in its stream, both counted from 1."""

    position: int
    stream: str
    version: int
    event: Event
    at: float


class Conflict(LostRace):
    """The stream is not at the expected version, or the transaction lost against another: decide again."""


class KeyReused(Exception):
    """The idempotency key came back with another request."""


class Gap(Exception):
    """An event is missing from the log, which means that the database was damaged."""


class EventLog(Protocol):
    """Safe to share between threads and processes. A stream that was never written is empty, at version 0."""

    def append(
        self,
        stream: str,
        events: Sequence[Event],
        *,
        expected: int | None,
        at: float,
        key: str | None = None,
        fingerprint: str = "",
        alongside: Alongside | None = None,
    ) -> list[Recorded]:
        """Add `events` to `stream`, all or none, and return them as they were recorded.

        `expected` is the version the stream must be at (0: it is new; None: any). `alongside` runs in the same
        transaction before anything is added, and what it raises aborts all; it runs for no events too.
        With a `key` that was used before, nothing is done and what was appended then is returned.

        Raises `Conflict`, `KeyReused` (same key, other `fingerprint`), `DatabaseUnavailable`.
        """

    def recall(self, key: str, fingerprint: str = "") -> list[Recorded] | None:
        """What was appended under `key`, or None. Raises `KeyReused`."""

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The events of one stream after a version, in order. Raises `Gap`."""

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The events of all streams after a position, in order. Raises `Gap`."""

    def struck(self, stream: str) -> frozenset[StudyId]:
        """The studies of the stream that were struck: whoever folds it must know them beforehand."""

    def version(self, stream: str) -> int:
        """How many events the stream has."""

    def head(self) -> int:
        """The last position."""

    def streams(self) -> list[str]:
        """The names of all streams, sorted."""


@dataclass(frozen=True, slots=True)
class _Used:
    """What an idempotency key stands for."""

    fingerprint: str
    stream: str
    version: int
    count: int

    def check(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise KeyReused("This idempotency key was used before, with another request.")


class MemoryLog:
    """A log in memory, for tests and simulations. `alongside` is called with None."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._all: list[Recorded] = []
        self._streams: dict[str, list[Recorded]] = {}
        self._keys: dict[str, _Used] = {}

    def append(
        self,
        stream: str,
        events: Sequence[Event],
        *,
        expected: int | None,
        at: float,
        key: str | None = None,
        fingerprint: str = "",
        alongside: Callable[[Any], None] | None = None,
    ) -> list[Recorded]:
        with self._lock:
            if key is not None and (known := self.recall(key, fingerprint)) is not None:
                return known
            version = self.version(stream)
            if events and expected is not None and expected != version:
                raise Conflict(f"Stream {stream} is at version {version}, not {expected}.")
            if alongside is not None:
                alongside(None)
            if key is not None:
                self._keys[key] = _Used(fingerprint, stream, version + len(events), len(events))
            return self._add(_placed(stream, events, len(self._all), version, at))

    def _add(self, recorded: list[Recorded]) -> list[Recorded]:
        self._all.extend(recorded)
        if recorded:
            self._streams.setdefault(recorded[0].stream, []).extend(recorded)
        return recorded

    def recall(self, key: str, fingerprint: str = "") -> list[Recorded] | None:
        with self._lock:
            if (used := self._keys.get(key)) is None:
                return None
            used.check(fingerprint)
            return self.read(used.stream, after=used.version - used.count, limit=used.count)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        with self._lock:
            return self._streams.get(stream, [])[after : None if limit is None else after + limit]

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        with self._lock:
            return self._all[after : None if limit is None else after + limit]

    def struck(self, stream: str) -> frozenset[StudyId]:
        return strikes(each.event for each in self.read(stream))

    def version(self, stream: str) -> int:
        with self._lock:
            return len(self._streams.get(stream, ()))

    def head(self) -> int:
        with self._lock:
            return len(self._all)

    def streams(self) -> list[str]:
        with self._lock:
            return sorted(self._streams)


class SqlLog:
    """The log in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self,
        stream: str,
        events: Sequence[Event],
        *,
        expected: int | None,
        at: float,
        key: str | None = None,
        fingerprint: str = "",
        alongside: Alongside | None = None,
    ) -> list[Recorded]:
        used = _Used(fingerprint, stream, 0, len(events))
        try:
            with self._database.write() as session:
                if key is not None and not _take_key(session, key, used, at):
                    return _recall(session, key, fingerprint) or []
                if alongside is not None:
                    alongside(Rows(session))
                recorded = _append(session, stream, events, expected, at, key)
                project(Rows(session), stream, events)
                return recorded
        except Conflict:
            raise
        except LostRace as error:
            raise Conflict(f"Appending to stream {stream} lost against another transaction.") from error
        except DatabaseUnavailable:  # perhaps from the commit itself: then only the key can tell whether it was done
            if key is None or (known := self.recall(key, fingerprint)) is None:
                raise
            return known

    def recall(self, key: str, fingerprint: str = "") -> list[Recorded] | None:
        with self._database.read() as session:
            return _recall(session, key, fingerprint)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        with self._database.read() as session:
            return _read(session, stream, after, limit)

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        query = select(EVENTS).where(EVENTS.c.position > after).order_by(EVENTS.c.position).limit(limit)
        with self._database.read() as session:
            recorded = _fetch(session, query)
        _check_no_gap((r.position for r in recorded), after, "The log")
        return recorded

    def struck(self, stream: str) -> frozenset[StudyId]:
        query = select(EVENTS).where(EVENTS.c.stream == stream, EVENTS.c.type == StudyStruck.__name__)
        with self._database.read() as session:
            return strikes(each.event for each in _fetch(session, query))

    def version(self, stream: str) -> int:
        with self._database.read() as session:
            return session.scalar(select(STREAMS.c.version).where(STREAMS.c.stream == stream)) or 0

    def head(self) -> int:
        with self._database.read() as session:
            return session.scalar(select(HEAD.c.position)) or 0

    def streams(self) -> list[str]:
        with self._database.read() as session:
            return list(session.scalars(select(STREAMS.c.stream).order_by(STREAMS.c.stream)))


def _placed(stream: str, events: Sequence[Event], position: int, version: int, at: float) -> list[Recorded]:
    """`events` in the places that follow `position` and `version`."""
    return [Recorded(position + n, stream, version + n, event, at) for n, event in enumerate(events, 1)]


def _append(
    session: Session, stream: str, events: Sequence[Event], expected: int | None, at: float, key: str | None
) -> list[Recorded]:
    if not events:
        return []
    encoded = [_as_stored(event) for event in events]
    placed = put(session.connection(), stream, expected, encoded, at)
    if placed is None:
        raise Conflict(f"Stream {stream} is not at version {expected}.")
    (position, version), count = placed, len(events)
    if key is not None:
        session.execute(update(KEYS).where(KEYS.c.key == key).values(version=version))
    return _placed(stream, [_as_read(*parts) for parts in encoded], position - count, version - count, at)


def _as_stored(event: Event) -> Encoded:
    type, version, data = encode(event)
    return type, version, json.dumps(data, allow_nan=False)


def _as_read(type: str, schema_version: int, data: str) -> Event:
    """A fact looks the same to the one who appends it and to all who read it: both see what came back from JSON."""
    return decode(type, schema_version, json.loads(data))


def _take_key(session: Session, key: str, used: _Used, at: float) -> bool:
    """Whether the key is new. Whoever comes second waits here until the first has committed or given up."""
    row = insert(session, KEYS).values(key=key, at=at, **asdict(used))
    return session.scalar(row.on_conflict_do_nothing().returning(KEYS.c.key)) is not None


def _recall(session: Session, key: str, fingerprint: str) -> list[Recorded] | None:
    columns = (KEYS.c.fingerprint, KEYS.c.stream, KEYS.c.version, KEYS.c.count)
    row = session.execute(select(*columns).where(KEYS.c.key == key)).one_or_none()
    if row is None:
        return None
    used = _Used(*row)
    used.check(fingerprint)
    return _read(session, used.stream, used.version - used.count, used.count) if used.count else []


def _read(session: Session, stream: str, after: int, limit: int | None) -> list[Recorded]:
    of_stream = select(EVENTS).where(EVENTS.c.stream == stream, EVENTS.c.version > after)
    recorded = _fetch(session, of_stream.order_by(EVENTS.c.version).limit(limit))
    _check_no_gap((r.version for r in recorded), after, f"Stream {stream}")
    return recorded


def _fetch(session: Session, query: Select[Any]) -> list[Recorded]:
    return [_recorded(row) for row in session.execute(query)]


def _recorded(row: Row[Any]) -> Recorded:
    event = decode(row.type, row.schema_version, row.data)
    return Recorded(row.position, row.stream, row.version, event, row.at)


def _check_no_gap(numbers: Iterable[int], after: int, what: str) -> None:
    for wanted, number in enumerate(numbers, after + 1):
        if number != wanted:
            raise Gap(f"{what} has no event number {wanted}: the next one is {number}.")
