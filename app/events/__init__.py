"""The event log and the rows beside it. All SQL is in this package, in modules that nothing here imports.

`app.domain.events` defines the events; this package stores them. Reading order: `codec` (event to JSON and back),
`database` and `tables`, `log` (appends), `plans` (folded plans in memory, also of a log that went back) and `past`
(plans at an earlier version), `rows` (chains, slots, studies), `records` (log and rows together, and how to write),
`sql_log` and `sql_rows` (both in a database), `memory` (the same without one, for tests and simulations),
`file_records` (the same for commands that look at a store in a folder).
"""

from __future__ import annotations

from app.events.log import Alongside, Archived, EventLog, Idempotency, StoredEvent, VersionConflict
from app.events.lost_commits import LostCommits
from app.events.past import MeasuredProfiles, Snapshots, last_profile, packs_on_record, profiles_on_record
from app.events.plans import Plans, PlanUnusable
from app.events.records import OPTIMISTIC, Decide, Moved, Records, Write, change, transact
from app.events.rows import (
    AT_WORK,
    LONGEST_QUARANTINE,
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    Fenced,
    Installation,
    Lease,
    LeaseFence,
    RowsPort,
    SlotLost,
    SlotRecord,
    SlotTaken,
    StudyRecord,
    TokenRecord,
    has_expired,
)
from app.outages import DatabaseUnavailable

__all__ = [
    "AT_WORK",
    "LONGEST_QUARANTINE",
    "OPTIMISTIC",
    "Alongside",
    "Archived",
    "ChainFlags",
    "ChainNotClaimable",
    "ChainRecord",
    "DatabaseUnavailable",
    "Decide",
    "EventLog",
    "Fenced",
    "Idempotency",
    "Installation",
    "Lease",
    "LeaseFence",
    "LostCommits",
    "MeasuredProfiles",
    "Moved",
    "PlanUnusable",
    "Plans",
    "Records",
    "RowsPort",
    "SlotLost",
    "SlotRecord",
    "SlotTaken",
    "Snapshots",
    "StoredEvent",
    "StudyRecord",
    "TokenRecord",
    "VersionConflict",
    "Write",
    "change",
    "has_expired",
    "last_profile",
    "packs_on_record",
    "profiles_on_record",
    "transact",
]
