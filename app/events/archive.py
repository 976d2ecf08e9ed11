"""Archives finished plans: the events of each are packed into one row.

Schedulers, retention and backups do not read an archived plan event by event, and its events are in no index. A reader
of its stream gets them from the archive, so its numbers, its log and its replays stay the same. Nothing can be appended
until the plan is brought back, which puts its events into the same positions. Slots, scheduler and API may not delete
from the log, and so cannot bring a plan back.

The archive is a table and not a file: it is part of every backup, and a plan moves in one transaction.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import bindparam, delete, insert, select

from app.domain.terms import StateConflict
from app.events.database import Database, SqlSession
from app.events.tables import ARCHIVE, BUSY, EVENTS, STREAMS

VERSION = select(ARCHIVE.c.version).where(ARCHIVE.c.stream == bindparam("stream"))
PACKED = select(ARCHIVE.c.events).where(ARCHIVE.c.stream == bindparam("stream"))

LEVEL = 6
"""The compression level: a higher one takes twice as long and saves one percent."""


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """A row of `events`."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    data: dict[str, Any]
    at: float
    by: str | None


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of moving a plan."""

    events: int

    bytes: int
    """The size of its row in the archive."""


def archive(database: Database, stream: str, at: float) -> Packed | None:
    """Archive a plan; None if no such plan is in the log.

    Raises `StateConflict` while the plan is in use, `DatabaseUnavailable`, `LostRace`.
    """
    with database.write() as session:
        query = select(STREAMS.c.version).where(STREAMS.c.stream == stream)
        version = session.scalar(query.with_for_update())  # a concurrent writer waits, then gets `Archived`
        if version is None:
            return None
        if stream in busy(session):
            raise StateConflict(f"Plan {stream} has a study that is not over, a chain or an audit.")
        rows = session.execute(select(EVENTS).where(EVENTS.c.stream == stream).order_by(EVENTS.c.version))
        packed = _pack([ArchivedEvent(**row._mapping) for row in rows])
        session.execute(insert(ARCHIVE).values(stream=stream, version=version, events=packed, at=at))
        session.execute(delete(EVENTS).where(EVENTS.c.stream == stream))
        session.execute(delete(STREAMS).where(STREAMS.c.stream == stream))
    return Packed(version, len(packed))


def bring_back(database: Database, stream: str) -> Packed | None:
    """Undo `archive`; None if the plan is not archived. Raises `DatabaseUnavailable`, `LostRace`."""
    with database.write() as session:
        row = session.execute(select(ARCHIVE).where(ARCHIVE.c.stream == stream).with_for_update()).one_or_none()
        if row is None:
            return None
        session.execute(insert(STREAMS).values(stream=stream, version=row.version))
        session.execute(insert(EVENTS), [asdict(each) for each in _unpack(row.events)])
        session.execute(delete(ARCHIVE).where(ARCHIVE.c.stream == stream))
    return Packed(row.version, len(row.events))


def list_archived(database: Database) -> list[str]:
    """The names of the archived plans. Raises `DatabaseUnavailable`."""
    with database.read() as session:
        return list(session.scalars(select(ARCHIVE.c.stream).order_by(ARCHIVE.c.stream)))


def old(database: Database, before: float) -> list[str]:
    """The plans that are not in use and whose last event is older than `before` (Unix seconds)."""
    last = (EVENTS.c.stream == STREAMS.c.stream) & (EVENTS.c.version == STREAMS.c.version)
    query = select(STREAMS.c.stream).join(EVENTS, last).where(EVENTS.c.at < before).order_by(EVENTS.c.at)
    with database.read() as session:
        still = busy(session)
        return [stream for stream in session.scalars(query) if stream not in still]


def busy(session: SqlSession) -> frozenset[str]:
    """The streams with an active study, a chain or an audit."""
    return frozenset(session.scalars(BUSY))


def is_archived(session: SqlSession, stream: str) -> bool:
    return session.scalar(VERSION, {"stream": stream}) is not None


def events_of(session: SqlSession, stream: str) -> list[ArchivedEvent]:
    """The events of an archived plan, in order; empty for any other stream."""
    packed = session.scalar(PACKED, {"stream": stream})
    return [] if packed is None else list(_unpack(packed))


def _pack(events: list[ArchivedEvent]) -> bytes:
    """One line per event: repeated field names compress to almost nothing."""
    return zlib.compress("\n".join(json.dumps(asdict(each)) for each in events).encode(), LEVEL)


def _unpack(packed: bytes) -> Iterator[ArchivedEvent]:
    for line in zlib.decompress(packed).decode().split("\n"):
        yield ArchivedEvent(**json.loads(line))
