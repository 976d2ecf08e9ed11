"""The log in a database.

How an append looks in SQL: move the stream, move the head, put the events in the places between.

On PostgreSQL that is one statement, so that the locks are held for one round trip and the commit; SQLite, which has no
round trips, cannot say it in one. The text is fixed: building statements anew each time halves the appends a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Integer, Row, Select, TextClause, bindparam, select, text, update

from app.domain.events import Event, StudyStruck
from app.domain.evolve import strikes
from app.domain.terms import StudyId
from app.events import archive
from app.events.codec import UnknownEvent, decode, write
from app.events.database import Database, DatabaseUnavailable, SqlSession, insert
from app.events.log.port import Append, EventLog, Gap, Idempotency, StoredEvent, Used, VersionConflict, placed, project
from app.events.rows import Rows
from app.events.tables import EVENTS, HEAD, KEYS, PROFILES, STREAMS
from app.outages import LostRace

Encoded = tuple[str, int, str]
"""The type name, the schema version and the JSON text of an event."""

MOVES = {
    "any": "INSERT INTO streams (stream, version) VALUES (:stream, :count)"
    " ON CONFLICT (stream) DO UPDATE SET version = streams.version + :count RETURNING version",
    "new": "INSERT INTO streams (stream, version) VALUES (:stream, :count)"
    " ON CONFLICT (stream) DO NOTHING RETURNING version",
    "at": "UPDATE streams SET version = version + :count WHERE stream = :stream AND version = :expected"
    " RETURNING version",
}
"""The stream's new version, from any version, from none, or from the expected one."""

OF_STREAM = (
    select(EVENTS)
    .where(EVENTS.c.stream == bindparam("stream"), EVENTS.c.version > bindparam("after"))
    .order_by(EVENTS.c.version)
)
SOME_OF_STREAM = OF_STREAM.limit(bindparam("limit", type_=Integer))
"""Built once: all who follow a plan ask whether there is more."""

COLUMNS = "stream, version, position, type, schema_version, data, at, by"

MOVE_STREAM = {how: text(move) for how, move in MOVES.items()}
MOVE_HEAD = text("UPDATE log_head SET position = position + :count WHERE id = 1 RETURNING position")
INSERT = text(
    f"INSERT INTO events ({COLUMNS}) VALUES (:stream, :version, :position, :type, :schema_version, :data, :at, :by)"
)


def put(
    connection: Connection, stream: str, expected: int | None, encoded: Sequence[Encoded], at: float, by: str | None
) -> tuple[int, int] | None:
    """Append to the stream, and return the position and version of the last event; None if it is not at `expected`.

    The rows of stream and head stay locked until the commit.
    """
    how = "any" if expected is None else "at" if expected else "new"
    to = {"stream": stream, "count": len(encoded), "expected": expected, "at": at, "by": by}
    on = _at_once if connection.dialect.name == "postgresql" else _one_by_one
    return on(connection, how, to, encoded)


def _one_by_one(
    connection: Connection, how: str, to: dict[str, Any], encoded: Sequence[Encoded]
) -> tuple[int, int] | None:
    version = connection.scalar(MOVE_STREAM[how], to)
    if version is None:
        return None
    position, count = connection.scalar(MOVE_HEAD, to), len(encoded)
    rows = [
        to
        | {"version": version - count + n, "position": position - count + n}
        | {"type": type, "schema_version": schema_version, "data": data}
        for n, (type, schema_version, data) in enumerate(encoded, 1)
    ]
    connection.execute(INSERT, rows)
    return position, version


def _whole(move: str) -> TextClause:
    """The head waits for the stream: what is not at the expected version takes no position."""
    return text(
        f"WITH moved AS ({move}),"
        " head AS (UPDATE log_head SET position = position + :count FROM moved WHERE id = 1"
        "  RETURNING position, moved.version)"
        f" INSERT INTO events ({COLUMNS})"
        " SELECT :stream, head.version - :count + n, head.position - :count + n, type, schema_version, data, :at,"
        "  CAST(:by AS text)"
        " FROM head, unnest(CAST(:types AS text[]), CAST(:schema_versions AS int[]), CAST(:datas AS json[]))"
        "  WITH ORDINALITY AS event (type, schema_version, data, n)"
        " RETURNING position, version"
    )


WHOLE = {how: _whole(move) for how, move in MOVES.items()}


def _at_once(
    connection: Connection, how: str, to: dict[str, Any], encoded: Sequence[Encoded]
) -> tuple[int, int] | None:
    types, schema_versions, datas = (list(column) for column in zip(*encoded, strict=True))
    events = {"types": types, "schema_versions": schema_versions, "datas": datas}
    places = connection.execute(WHOLE[how], to | events).all()
    return tuple(max(places)) if places else None


class SqlLog(EventLog):
    """The log in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, append: Append) -> list[StoredEvent]:
        once = append.idempotency
        try:
            with self._database.write() as session:
                return _write(session, append)
        except VersionConflict:
            raise
        except LostRace as error:
            raise VersionConflict(f"Appending to stream {append.stream} lost against another transaction.") from error
        except DatabaseUnavailable:  # perhaps from the commit itself: then only the key can tell whether it was done
            if once is None or (recorded := self.find_by_key(once.key, once.fingerprint)) is None:
                raise
            return recorded

    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        with self._database.read() as session:
            return _find_by_key(session, key, fingerprint)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        with self._database.read() as session:
            return _read(session, stream, after, limit)

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        place = select(EVENTS.c.position, EVENTS.c.stream)
        query = place.where(EVENTS.c.position > after).order_by(EVENTS.c.position).limit(limit)
        with self._database.read() as session:
            return [(position, stream) for position, stream in session.execute(query)]

    def struck(self, stream: str) -> frozenset[StudyId]:
        query = select(EVENTS).where(EVENTS.c.stream == stream, EVENTS.c.type == StudyStruck.__name__)
        with self._database.read() as session:
            struck = strikes(each.event for each in _fetch(session, query))
            return struck or strikes(_recorded(each).event for each in archive.events_of(session, stream))

    def profiles(self) -> list[StoredEvent]:
        recorded: list[StoredEvent] = []
        with self._database.read() as session:
            for row in session.execute(select(EVENTS).where(text(PROFILES)).order_by(EVENTS.c.position)):
                with suppress(UnknownEvent):
                    recorded.append(_recorded(row))
        return recorded

    def version(self, stream: str) -> int:
        with self._database.read() as session:
            return session.scalar(select(STREAMS.c.version).where(STREAMS.c.stream == stream)) or 0

    def head(self) -> int:
        with self._database.read() as session:
            return session.scalar(select(HEAD.c.position)) or 0

    def versions(self) -> dict[str, int]:
        query = select(STREAMS.c.stream, STREAMS.c.version).order_by(STREAMS.c.stream)
        with self._database.read() as session:
            return {row.stream: row.version for row in session.execute(query)}


def _write(session: SqlSession, append: Append) -> list[StoredEvent]:
    """Locks are taken in the order that the head of this package names."""
    once = append.idempotency
    if once is not None and not _take_key(session, append, once):
        return _find_by_key(session, once.key, once.fingerprint) or []
    if append.alongside is not None:
        append.alongside(Rows(session))
    if append.decide is not None:
        append = _decided(session, append, append.decide)
    recorded = _append(session, append)
    project(Rows(session), append.stream, append.events)
    return recorded


def _decided(session: SqlSession, append: Append, decide: Callable[[Sequence[StoredEvent]], Sequence[Event]]) -> Append:
    """With the events that are decided on now, while the stream is locked."""
    version = session.scalar(select(STREAMS.c.version).where(STREAMS.c.stream == append.stream).with_for_update())
    news = _read(session, append.stream, append.expected or 0, None)
    return replace(append, events=decide(news), expected=version or 0)


def _append(session: SqlSession, append: Append) -> list[StoredEvent]:
    if not append.events:
        return []
    encoded = [write(event) for event in append.events]
    place = put(session.connection, append.stream, append.expected, encoded, append.at, append.by)
    if (place is None or place[1] == len(encoded)) and archive.is_archived(session, append.stream):
        raise archive.Archived(append.stream)
    if place is None:
        raise VersionConflict(f"Stream {append.stream} is not at version {append.expected}.")
    (position, version), count = place, len(encoded)
    if append.idempotency is not None:
        used = {"version": version, "count": count}
        session.execute(update(KEYS).where(KEYS.c.key == append.idempotency.key).values(used))
    events = [_as_read(*parts) for parts in encoded]
    return placed(append, events, position - count, version - count)


def _as_read(type: str, schema_version: int, data: str) -> Event:
    """A fact looks the same to the one who appends it and to all who read it: both see what came back from JSON."""
    return decode(type, schema_version, json.loads(data))


def _take_key(session: SqlSession, append: Append, once: Idempotency) -> bool:
    """Whether the key is new. Whoever comes second waits here until the first has committed or given up."""
    used = {"fingerprint": once.fingerprint, "stream": append.stream, "version": 0, "count": 0}
    row = insert(session, KEYS).values(key=once.key, at=append.at, **used)
    return session.scalar(row.on_conflict_do_nothing().returning(KEYS.c.key)) is not None


def _find_by_key(session: SqlSession, key: str, fingerprint: str) -> list[StoredEvent] | None:
    columns = (KEYS.c.fingerprint, KEYS.c.stream, KEYS.c.version, KEYS.c.count)
    row = session.execute(select(*columns).where(KEYS.c.key == key)).one_or_none()
    if row is None:
        return None
    used = Used(*row)
    used.check(fingerprint)
    return _read(session, used.stream, used.version - used.count, used.count) if used.count else []


def _read(session: SqlSession, stream: str, after: int, limit: int | None) -> list[StoredEvent]:
    given = {"stream": stream, "after": after} | ({} if limit is None else {"limit": limit})
    recorded = _fetch(session, OF_STREAM if limit is None else SOME_OF_STREAM, given)
    if not recorded:
        there = archive.events_of(session, stream)[after:]
        recorded = [_recorded(each) for each in (there if limit is None else there[:limit])]
    _check_no_gap((r.version for r in recorded), after, f"Stream {stream}")
    return recorded


def _fetch(session: SqlSession, query: Select[Any], given: Mapping[str, Any] | None = None) -> list[StoredEvent]:
    return [_recorded(row) for row in session.execute(query, given)]


def _recorded(row: Row[Any] | archive.ArchivedEvent) -> StoredEvent:
    event = decode(row.type, row.schema_version, row.data)
    return StoredEvent(row.position, row.stream, row.version, event, row.at, row.by)


def _check_no_gap(numbers: Iterable[int], after: int, stream: str) -> None:
    for expected, number in enumerate(numbers, after + 1):
        if number != expected:
            raise Gap(f"{stream} has no event number {expected}: the next one is {number}.")
