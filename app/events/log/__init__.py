"""The log: facts in one order that every reader sees, without gaps, which is the order in which they were committed.

A database sequence does not give that order: a reader may see position 8 before 7 is committed, and miss 7. Here the
position comes from one row, `log_head`, that stays locked until the commit. Locks are always taken in one order: key,
rows of `alongside`, stream, head; the head last, so that it is held shortest.
"""

from __future__ import annotations

from app.events.log.port import (
    Alongside,
    Append,
    EventLog,
    Gap,
    Idempotency,
    KeyReused,
    StoredEvent,
    Used,
    VersionConflict,
    placed,
)
from app.events.log.sql import SqlLog

__all__ = [
    "Alongside",
    "Append",
    "EventLog",
    "Gap",
    "Idempotency",
    "KeyReused",
    "SqlLog",
    "StoredEvent",
    "Used",
    "VersionConflict",
    "placed",
]
