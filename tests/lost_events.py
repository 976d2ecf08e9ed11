"""A log without its last events, as after a fail-over to a replica that lacks them. Its rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from app.events.log import EventLog, SqlLog
from app.events.memory import MemoryLog

WITHOUT_THE_LAST = (
    "DELETE FROM events WHERE position > :head",
    "UPDATE log_head SET position = :head",
    "DELETE FROM streams WHERE stream NOT IN (SELECT stream FROM events)",
    "UPDATE streams SET version = (SELECT max(version) FROM events WHERE events.stream = streams.stream)",
)


@contextmanager
def lost(log: EventLog) -> Iterator[None]:
    """What is appended within the block is lost at its end."""
    head, put_back = log.head(), log.replica() if isinstance(log, MemoryLog) else None
    yield
    if put_back is not None:
        put_back()
        return
    assert isinstance(log, SqlLog)
    with log.database.write() as session:
        for statement in WITHOUT_THE_LAST:
            session.execute(text(statement), {"head": head})
