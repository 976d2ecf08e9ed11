"""Plans that are over, out of the way: the events of each, packed into one row.

An archived plan is in no list that schedulers, retention or backups go through event by event, and its events are in no
index that others are looked up in. A reader of its stream is given them from there, so all its numbers, its log and
its replays are as they were. Nothing is appended to it: it must be brought back before, with its events in the same
places. Slots, scheduler and API do not bring it back, since they may not delete from the log.

It is a row and not a file: a row is in every backup, and moves in one transaction.
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
"""Of the compression: a higher one takes twice as long for a hundredth."""


class Archived(StateConflict):
    """Nothing can be added to a plan that is archived."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"Plan {stream} is archived: bring it back with `stagetree archive --back STUDY`.")


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """As a row of `events`."""

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
    """A plan that was moved. bytes: of its row in the archive."""

    events: int
    bytes: int


def archive(database: Database, stream: str, at: float) -> Packed | None:
    """Put a plan into the archive; None where there is no such plan outside of it.

    Raises `StateConflict` while something goes on in it, `DatabaseUnavailable`, `LostRace`.
    """
    with database.write() as session:
        query = select(STREAMS.c.version).where(STREAMS.c.stream == stream)
        version = session.scalar(query.with_for_update())  # whoever appends waits, and finds it archived
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
    """Undo `archive`; None where the plan is not archived. Raises `DatabaseUnavailable`, `LostRace`."""
    with database.write() as session:
        row = session.execute(select(ARCHIVE).where(ARCHIVE.c.stream == stream).with_for_update()).one_or_none()
        if row is None:
            return None
        session.execute(insert(STREAMS).values(stream=stream, version=row.version))
        session.execute(insert(EVENTS), [asdict(each) for each in _unpack(row.events)])
        session.execute(delete(ARCHIVE).where(ARCHIVE.c.stream == stream))
    return Packed(row.version, len(row.events))


def archived(database: Database) -> list[str]:
    """The plans that are in it. Raises `DatabaseUnavailable`."""
    with database.read() as session:
        return list(session.scalars(select(ARCHIVE.c.stream).order_by(ARCHIVE.c.stream)))


def old(database: Database, before: float) -> list[str]:
    """The plans in which nothing goes on, and nothing happened since a time in Unix seconds."""
    last = (EVENTS.c.stream == STREAMS.c.stream) & (EVENTS.c.version == STREAMS.c.version)
    query = select(STREAMS.c.stream).join(EVENTS, last).where(EVENTS.c.at < before).order_by(EVENTS.c.at)
    with database.read() as session:
        still = busy(session)
        return [stream for stream in session.scalars(query) if stream not in still]


def busy(session: SqlSession) -> frozenset[str]:
    """The streams that something is still wanted of, or that a chain writes to."""
    return frozenset(session.scalars(BUSY))


def is_archived(session: SqlSession, stream: str) -> bool:
    return session.scalar(VERSION, {"stream": stream}) is not None


def events_of(session: SqlSession, stream: str) -> list[ArchivedEvent]:
    """The events of an archived plan, in order; nothing of another."""
    packed = session.scalar(PACKED, {"stream": stream})
    return [] if packed is None else list(_unpack(packed))


def _pack(events: list[ArchivedEvent]) -> bytes:
    """A line for each: the parts that are alike take next to nothing."""
    return zlib.compress("\n".join(json.dumps(asdict(each)) for each in events).encode(), LEVEL)


def _unpack(packed: bytes) -> Iterator[ArchivedEvent]:
    for line in zlib.decompress(packed).decode().split("\n"):
        yield ArchivedEvent(**json.loads(line))
