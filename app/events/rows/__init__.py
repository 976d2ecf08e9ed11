"""The rows beside the log. See `ports` for the meaning of each operation, and `sql_rows` for those in a database."""

from __future__ import annotations

from app.events.row_types import (
    AT_WORK,
    LONGEST_QUARANTINE,
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    Fenced,
    Installation,
    Lease,
    LeaseFence,
    SlotLost,
    SlotRecord,
    SlotTaken,
    StudyRecord,
    TokenRecord,
    has_expired,
)
from app.events.rows.ports import RowsPort

__all__ = [
    "AT_WORK",
    "LONGEST_QUARANTINE",
    "ChainFlags",
    "ChainNotClaimable",
    "ChainRecord",
    "Fenced",
    "Installation",
    "Lease",
    "LeaseFence",
    "RowsPort",
    "SlotLost",
    "SlotRecord",
    "SlotTaken",
    "StudyRecord",
    "TokenRecord",
    "has_expired",
]
