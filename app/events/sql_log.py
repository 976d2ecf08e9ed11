"""The log in a database. An append moves the stream, moves the head, and inserts the events at the positions between.

On PostgreSQL that is one statement, so that the locks are held for one round trip and the commit. SQLite has no round
trips, and no such statement. The SQL text is constant: building statements each time halves the appends per second.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Integer, Row, Select, TextClause, bindparam, func, select, text

from app.domain.events import ChainEnded, Event, StageFailed, StudyStruck
from app.domain.evolve import struck_studies
from app.domain.terms import FAILURES, StudyId
from app.events import archive
from app.events.codec import UnknownEvent, decode, write
from app.events.database import Database, SqlSession
from app.events.log import (
    Append,
    Archived,
    EventLog,
    Idempotency,
    StoredEvent,
    Used,
    VersionConflict,
    assign_positions,
    check_no_gap,
    check_not_shorter,
    project,
)
from app.events.sql_rows import Rows
from app.events.tables import EVENTS, HEAD, KEYS, PROFILES, STREAMS
from app.outages import DatabaseUnavailable, LostRace

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
"""Return the stream's new version: from any version, from none, or from the expected one."""

STREAM_EVENTS = (
    select(EVENTS)
    .where(EVENTS.c.stream == bindparam("stream"), EVENTS.c.version > bindparam("after"))
    .order_by(EVENTS.c.version)
)
STREAM_EVENTS_LIMITED = STREAM_EVENTS.limit(bindparam("limit", type_=Integer))
"""Built once: all readers of a plan poll for new events."""

LOCKED_VERSION = select(STREAMS.c.version).where(STREAMS.c.stream == bindparam("stream")).with_for_update()

COLUMNS = "stream, version, position, type, schema_version, data, at, by"

MOVE_STREAM = {how: text(move) for how, move in MOVES.items()}
MOVE_HEAD = text("UPDATE log_head SET position = position + :count WHERE id = 1 RETURNING position")
INSERT = text(
    f"INSERT INTO events ({COLUMNS}) VALUES (:stream, :version, :position, :type, :schema_version, :data, :at, :by)"
)

TAKE_KEY = text(
    "INSERT INTO idempotency (key, fingerprint, stream, version, count, at)"
    " VALUES (:key, :fingerprint, :stream, 0, 0, :at) ON CONFLICT DO NOTHING RETURNING key"
)
USED = select(KEYS.c.fingerprint, KEYS.c.stream, KEYS.c.version, KEYS.c.count).where(KEYS.c.key == bindparam("key"))
USE_KEY = text("UPDATE idempotency SET version = :version, count = :count WHERE key = :key")


def append_events(
    connection: Connection, stream: str, expected: int | None, encoded: Sequence[Encoded], at: float, by: str | None
) -> tuple[int, int] | None:
    """Append to the stream; returns the last position and version, or None if the stream is not at `expected`.

    The rows of stream and head stay locked until the commit.
    """
    how = "any" if expected is None else "at" if expected else "new"
    to = {"stream": stream, "count": len(encoded), "expected": expected, "at": at, "by": by}
    on = _append_in_one_statement if connection.dialect.name == "postgresql" else _append_in_steps
    return on(connection, how, to, encoded)


def _append_in_steps(
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


def _append_statement(move: str) -> TextClause:
    """The head waits for the stream: an append at a wrong version takes no position."""
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


APPEND = {how: _append_statement(move) for how, move in MOVES.items()}


def _append_in_one_statement(
    connection: Connection, how: str, to: dict[str, Any], encoded: Sequence[Encoded]
) -> tuple[int, int] | None:
    types, schema_versions, datas = (list(column) for column in zip(*encoded, strict=True))
    events = {"types": types, "schema_versions": schema_versions, "datas": datas}
    places = connection.execute(APPEND[how], to | events).all()
    return tuple(max(places)) if places else None


class SqlLog(EventLog):
    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, append: Append) -> list[StoredEvent]:
        once = append.idempotency
        try:
            with self.database.write() as session:
                return _write(session, append)
        except VersionConflict:
            raise
        except LostRace as error:
            raise VersionConflict(f"Appending to stream {append.stream} lost against another transaction.") from error
        except DatabaseUnavailable:  # perhaps from the commit itself: then only the key shows whether it succeeded
            if once is None or (recorded := self.find_by_key(once.key, once.fingerprint)) is None:
                raise
            return recorded

    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        with self.database.read() as session:
            return _find_by_key(session, key, fingerprint)

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        with self.database.read() as session:
            return _read(session, stream, after, limit)

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        place = select(EVENTS.c.position, EVENTS.c.stream)
        query = place.where(EVENTS.c.position > after).order_by(EVENTS.c.position).limit(limit)
        with self.database.read() as session:
            return [(position, stream) for position, stream in session.execute(query)]

    def struck_studies(self, stream: str) -> frozenset[StudyId]:
        query = select(EVENTS).where(EVENTS.c.stream == stream, EVENTS.c.type == StudyStruck.__name__)
        with self.database.read() as session:
            struck = struck_studies(each.event for each in _fetch(session, query))
            return struck or struck_studies(_stored_event(each).event for each in archive.events_of(session, stream))

    def profiles(self) -> list[StoredEvent]:
        recorded: list[StoredEvent] = []
        with self.database.read() as session:
            for row in session.execute(select(EVENTS).where(text(PROFILES)).order_by(EVENTS.c.position)):
                with suppress(UnknownEvent):
                    recorded.append(_stored_event(row))
        return recorded

    def count_failures(self, after: int, until: int) -> dict[str, int]:
        of_stages = EVENTS.c.data["kind"].as_string(), EVENTS.c.type == StageFailed.__name__
        of_chains = EVENTS.c.data["outcome"].as_string(), EVENTS.c.type == ChainEnded.__name__
        counts = Counter[str]()
        with self.database.read() as session:
            for column, is_it in (of_stages, of_chains):
                query = select(column, func.count()).where(EVENTS.c.position > after, EVENTS.c.position <= until, is_it)
                for kind, count in session.execute(query.group_by(text("1"))):
                    counts[kind] += count
        return {kind: count for kind, count in counts.items() if kind in FAILURES}

    def version(self, stream: str) -> int:
        with self.database.read() as session:
            return session.scalar(select(STREAMS.c.version).where(STREAMS.c.stream == stream)) or 0

    def head(self) -> int:
        with self.database.read() as session:
            return session.scalar(select(HEAD.c.position)) or 0

    def versions(self) -> dict[str, int]:
        query = select(STREAMS.c.stream, STREAMS.c.version).order_by(STREAMS.c.stream)
        with self.database.read() as session:
            return {row.stream: row.version for row in session.execute(query)}


def _write(session: SqlSession, append: Append) -> list[StoredEvent]:
    """Takes the locks in the order that the package documents."""
    once = append.idempotency
    if once is not None and not _take_key(session, append, once):
        return _find_by_key(session, once.key, once.fingerprint) or []
    if append.alongside is not None:
        append.alongside(Rows(session))
    if append.decide is not None:
        append = _decide(session, append, append.decide)
    recorded = _append(session, append)
    project(Rows(session), append.stream, append.events)
    return recorded


def _decide(session: SqlSession, append: Append, decide: Callable[[Sequence[StoredEvent]], Sequence[Event]]) -> Append:
    """Decide on the events while the stream is locked."""
    version = session.scalar(LOCKED_VERSION, {"stream": append.stream})
    check_not_shorter(append, version or 0)
    news = _read(session, append.stream, append.expected or 0, None)
    return replace(append, events=decide(news), expected=version or 0)


def _append(session: SqlSession, append: Append) -> list[StoredEvent]:
    if not append.events:
        return []
    encoded = [write(event) for event in append.events]
    place = append_events(session.connection, append.stream, append.expected, encoded, append.at, append.by)
    if (place is None or place[1] == len(encoded)) and archive.is_archived(session, append.stream):
        raise Archived(append.stream)
    if place is None:
        raise VersionConflict(f"Stream {append.stream} is not at version {append.expected}.")
    (position, version), count = place, len(encoded)
    if append.idempotency is not None:
        session.execute(USE_KEY, {"key": append.idempotency.key, "version": version, "count": count})
    events = [_round_trip(*parts) for parts in encoded]
    return assign_positions(append, events, position - count, version - count)


def _round_trip(type: str, schema_version: int, data: str) -> Event:
    """The writer of an event gets it in the same form as its readers: decoded from JSON."""
    return decode(type, schema_version, json.loads(data))


def _take_key(session: SqlSession, append: Append, once: Idempotency) -> bool:
    """Whether the key is new. A second writer waits here until the first has committed or rolled back."""
    given = {"key": once.key, "fingerprint": once.fingerprint, "stream": append.stream, "at": append.at}
    return session.scalar(TAKE_KEY, given) is not None


def _find_by_key(session: SqlSession, key: str, fingerprint: str) -> list[StoredEvent] | None:
    row = session.execute(USED, {"key": key}).one_or_none()
    if row is None:
        return None
    used = Used(*row)
    used.check(fingerprint)
    return _read(session, used.stream, used.version - used.count, used.count) if used.count else []


def _read(session: SqlSession, stream: str, after: int, limit: int | None) -> list[StoredEvent]:
    given = {"stream": stream, "after": after} | ({} if limit is None else {"limit": limit})
    recorded = _fetch(session, STREAM_EVENTS if limit is None else STREAM_EVENTS_LIMITED, given)
    if not recorded:
        there = archive.events_of(session, stream)[after:]
        recorded = [_stored_event(each) for each in (there if limit is None else there[:limit])]
    check_no_gap((r.version for r in recorded), after, f"Stream {stream}")
    return recorded


def _fetch(session: SqlSession, query: Select[Any], given: Mapping[str, Any] | None = None) -> list[StoredEvent]:
    return [_stored_event(row) for row in session.execute(query, given)]


def _stored_event(row: Row[Any] | archive.ArchivedEvent) -> StoredEvent:
    event = decode(row.type, row.schema_version, row.data)
    return StoredEvent(row.position, row.stream, row.version, event, row.at, row.by)


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
