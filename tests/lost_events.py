"""A log without its last events, as after a fail-over to a replica that lacks them. Its rows stay as they are."""

from __future__ import annotations

from sqlalchemy import text

from app.events.log import EventLog, SqlLog
from app.events.memory import MemoryLog

WITHOUT_THE_LAST = (
    "DELETE FROM events WHERE position > :head",
    "UPDATE log_head SET position = :head",
    "DELETE FROM streams WHERE stream NOT IN (SELECT stream FROM events)",
    "UPDATE streams SET version = (SELECT max(version) FROM events WHERE events.stream = streams.stream)",
)


def lose_events(log: EventLog, head: int) -> None:
    """Those after a position."""
    if isinstance(log, MemoryLog):
        log._all = log._all[:head]
        log._streams = {name: [each for each in log._all if each.stream == name] for name in log._streams}
        return
    assert isinstance(log, SqlLog)
    with log._database.write() as session:
        for statement in WITHOUT_THE_LAST:
            session.execute(text(statement), {"head": head})
