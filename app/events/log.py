"""The log: facts in one order that every reader sees, without gaps, which is the order in which they were committed.

A database sequence does not give that order: a reader may see position 8 before 7 is committed, and miss 7. Here the
position comes from one row, `log_head`, that stays locked until the commit. Locks are always taken in one order: key,
rows of `alongside`, stream, head; the head last, so that it is held shortest.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from app.events.rows.ports import RowsPort
from app.events.tables import EVENTS, HEAD, KEYS, STREAMS

Alongside = Callable[[RowsPort], None]


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


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A key under which something is appended once: it comes back with the same `fingerprint` or is refused."""

    key: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Events for one stream, all or none.

    expected: the version that the stream must be at (0: it is new; None: any). alongside: runs in the same transaction
    before anything is added, and what it raises aborts all; it runs for no events too. decide: says what the events
    are, once the stream is locked, given what came after version `expected`; nobody can be faster then.
    """

    stream: str
    events: Sequence[Event] = ()
    expected: int | None = None
    at: float
    idempotency: Idempotency | None = None
    alongside: Alongside | None = None
    decide: Callable[[Sequence[Recorded]], Sequence[Event]] | None = None


class EventLog(ABC):
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
        """As `write`, in short."""
        once = None if key is None else Idempotency(key, fingerprint)
        return self.write(
            Append(stream=stream, events=events, expected=expected, at=at, idempotency=once, alongside=alongside)
        )

    @abstractmethod
    def write(self, append: Append) -> list[Recorded]:
        """Add events to a stream, and return them as they were recorded.

        With an idempotency key that was used before, nothing is done and what was appended then is returned.
        Raises `Conflict`, `KeyReused` (same key, other fingerprint), `DatabaseUnavailable`.
        """

    @abstractmethod
    def recall(self, key: str, fingerprint: str = "") -> list[Recorded] | None:
        """What was appended under `key`, or None. Raises `KeyReused`."""

    @abstractmethod
    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The events of one stream after a version, in order. Raises `Gap` and `app.events.codec.UnknownEvent`."""

    @abstractmethod
    def tail(self, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The events of all streams after a position, in order. Raises as `read` does."""

    @abstractmethod
    def struck(self, stream: str) -> frozenset[StudyId]:
        """The studies of the stream that were struck: whoever folds it must know them beforehand."""

    @abstractmethod
    def version(self, stream: str) -> int:
        """How many events the stream has."""

    @abstractmethod
    def head(self) -> int:
        """The last position."""

    @abstractmethod
    def streams(self) -> list[str]:
        """The names of all streams, sorted."""


@dataclass(frozen=True, slots=True)
class Used:
    """What an idempotency key stands for."""

    fingerprint: str
    stream: str
    version: int
    count: int

    def check(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise KeyReused("This idempotency key was used before, with another request.")


class SqlLog(EventLog):
    """The log in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, append: Append) -> list[Recorded]:
        once = append.idempotency
        try:
            with self._database.write() as session:
                return _write(session, append)
        except Conflict:
            raise
        except LostRace as error:
            raise Conflict(f"Appending to stream {append.stream} lost against another transaction.") from error
        except DatabaseUnavailable:  # perhaps from the commit itself: then only the key can tell whether it was done
            if once is None or (recorded := self.recall(once.key, once.fingerprint)) is None:
                raise
            return recorded

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


def placed(stream: str, events: Sequence[Event], position: int, version: int, at: float) -> list[Recorded]:
    """`events` in the places that follow `position` and `version`."""
    return [Recorded(position + n, stream, version + n, event, at) for n, event in enumerate(events, 1)]


def _write(session: Session, append: Append) -> list[Recorded]:
    """Locks are taken in the order that the head of this file names."""
    once = append.idempotency
    if once is not None and not _take_key(session, append, once):
        return _recall(session, once.key, once.fingerprint) or []
    if append.alongside is not None:
        append.alongside(Rows(session))
    if append.decide is not None:
        append = _decided(session, append, append.decide)
    recorded = _append(session, append)
    project(Rows(session), append.stream, append.events)
    return recorded


def _decided(session: Session, append: Append, decide: Callable[[Sequence[Recorded]], Sequence[Event]]) -> Append:
    """With the events that are decided on now, while the stream is locked."""
    version = session.scalar(select(STREAMS.c.version).where(STREAMS.c.stream == append.stream).with_for_update())
    news = _read(session, append.stream, append.expected or 0, None)
    return replace(append, events=decide(news), expected=version or 0)


def _append(session: Session, append: Append) -> list[Recorded]:
    if not append.events:
        return []
    encoded = [_as_stored(event) for event in append.events]
    place = put(session.connection(), append.stream, append.expected, encoded, append.at)
    if place is None:
        raise Conflict(f"Stream {append.stream} is not at version {append.expected}.")
    (position, version), count = place, len(encoded)
    if append.idempotency is not None:
        used = {"version": version, "count": count}
        session.execute(update(KEYS).where(KEYS.c.key == append.idempotency.key).values(used))
    events = [_as_read(*parts) for parts in encoded]
    return placed(append.stream, events, position - count, version - count, append.at)


def _as_stored(event: Event) -> Encoded:
    type, version, data = encode(event)
    return type, version, json.dumps(data, allow_nan=False)


def _as_read(type: str, schema_version: int, data: str) -> Event:
    """A fact looks the same to the one who appends it and to all who read it: both see what came back from JSON."""
    return decode(type, schema_version, json.loads(data))


def _take_key(session: Session, append: Append, once: Idempotency) -> bool:
    """Whether the key is new. Whoever comes second waits here until the first has committed or given up."""
    used = {"fingerprint": once.fingerprint, "stream": append.stream, "version": 0, "count": 0}
    row = insert(session, KEYS).values(key=once.key, at=append.at, **used)
    return session.scalar(row.on_conflict_do_nothing().returning(KEYS.c.key)) is not None


def _recall(session: Session, key: str, fingerprint: str) -> list[Recorded] | None:
    columns = (KEYS.c.fingerprint, KEYS.c.stream, KEYS.c.version, KEYS.c.count)
    row = session.execute(select(*columns).where(KEYS.c.key == key)).one_or_none()
    if row is None:
        return None
    used = Used(*row)
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
