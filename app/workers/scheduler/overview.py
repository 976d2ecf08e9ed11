"""Runs on: the tick's thread.

How things stand, read in one transaction: all that a tick needs to know whether there is anything to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.states import ChainState
from app.events.records import Records
from app.events.rows import ChainRecord, SlotRecord, has_expired
from app.scheduling.placement import Candidates

DISPATCH_AGAIN_SECONDS = 15.0
"""A chain that nobody claimed is sent again after so long; a second message does no harm."""


@dataclass(frozen=True, slots=True)
class Overview:
    """now: by the clock of the leases. versions: how many events each busy plan has.

    slots: those that are alive. live: the chains that nobody has ended. expired: those of them that were not heard of
    in time. undelivered: those that were sent long ago and that nobody claimed.
    """

    now: float
    versions: Mapping[str, int]
    slots: Mapping[str, SlotRecord]
    live: Sequence[ChainRecord]
    expired: Sequence[ChainRecord]
    undelivered: Sequence[ChainRecord]


def overview(records: Records, lease_seconds: float) -> Overview:
    """Raises `DatabaseUnavailable`."""
    with records.read() as rows:
        now, live = rows.now(), rows.chains.live()  # in this order: what is renewed between is not taken for late
        return Overview(
            now=now,
            versions=rows.studies.busy_versions(),
            slots={slot.name: slot for slot in rows.slots.alive(lease_seconds)},
            live=live,
            expired=[row for row in live if has_expired(row.lease_until, now, longest_lease(lease_seconds))],
            undelivered=[row for row in live if _is_undelivered(row, now)],
        )


def _is_undelivered(row: ChainRecord, now: float) -> bool:
    return row.state == ChainState.READY and row.dispatched_at < now - DISPATCH_AGAIN_SECONDS


def longest_lease(lease_seconds: float) -> float:
    """A lease that lasts for longer from here was given before the clock of the leases went back."""
    return 2 * lease_seconds


def candidates(seen: Overview) -> Candidates:
    """The slots that may be given work."""
    well = [slot for slot in seen.slots.values() if (slot.quarantined_until or seen.now) <= seen.now]
    return Candidates(well, [slot for slot in well if slot.chain is None])
