"""The log: events in one order without gaps, which is the order in which they were committed.

A database sequence does not give that order: a reader may see position 8 before 7 is committed, and miss 7. Here the
position comes from one row, `log_head`, which stays locked until the commit. Locks are always taken in one order: key,
rows of `alongside`, stream, head. The head comes last, so that it is held for the shortest time.
"""

from __future__ import annotations

from app.events.log.port import (
    Alongside,
    Append,
    Archived,
    EventLog,
    Gap,
    Idempotency,
    KeyReused,
    StoredEvent,
    Used,
    VersionConflict,
    assign_positions,
)

__all__ = [
    "Alongside",
    "Append",
    "Archived",
    "EventLog",
    "Gap",
    "Idempotency",
    "KeyReused",
    "StoredEvent",
    "Used",
    "VersionConflict",
    "assign_positions",
]
