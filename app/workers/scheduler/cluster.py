"""The state of slots and chains. Each look reads only the rows that have changed since the last one.

Time-dependent conditions are checked again when their time has come, so the cost of a look depends on the changes, not
on the number of chains. Once a lease, and after an outage, all rows are read: after a failover the new server may lack
some changes.

Runs on: the tick's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from app.domain.terms import ChainState
from app.events import LONGEST_QUARANTINE, ChainRecord, SlotRecord, has_expired
from app.scheduling.placement import Candidates
from app.workers.scheduler.ports import Ports

DISPATCH_AGAIN_SECONDS = 15.0
"""A chain that no worker has claimed is sent again after this time; a duplicate message does no harm."""

GIVEN_UP = 0.0
"""The lease of a chain whose worker gave it up, or whose slot another worker has taken."""

Row = TypeVar("Row")


class TimedSelection(Generic[Row]):
    """The rows for which a condition holds at the time of the last look, sorted by name.

    holds: the condition at a time.
    times: when the condition may change for an unchanged row. If the clock goes back, it may change at any time.
    """

    def __init__(self, holds: Callable[[Row, float], bool], times: Callable[[Row], Iterable[float]]) -> None:
        self._holds, self._times = holds, times
        self._valid = (inf, -inf)  # from when until when nothing changes by itself
        self.rows: dict[str, Row] = {}

    def look(self, changed: Mapping[str, Row | None], rows: Mapping[str, Row], now: float) -> None:
        """changed: the changed rows, None for deleted ones. rows: all current rows."""
        (begin, end), has_more = self._valid, False
        if not begin <= now < end:
            changed, end, self.rows = rows, inf, {}
        for name, row in changed.items():
            if row is not None:
                end = min((end, *(at for at in self._times(row) if at >= now)))
            if row is not None and self._holds(row, now):
                has_more = has_more or name not in self.rows
                self.rows[name] = row
            else:
                self.rows.pop(name, None)
        if has_more:
            self.rows = dict(sorted(self.rows.items()))
        self._valid = (now, end)


class Cluster:
    """The slots and chains as of the last look.

    now: by the clock of the leases.
    versions: the number of events of each busy plan.
    slots: the live ones.
    live: the live chains by name.
    changed_chains: chains whose row has changed; the reader of them empties it.
    last_begun: by slot, when the last chain was sent that its worker began.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports, self._slots = ports, dict[str, SlotRecord]()
        self._mark: object = None
        self._all_again_at = -inf
        self.now, self.versions, self.live = 0.0, dict[str, int](), dict[str, ChainRecord]()
        self.changed_chains, self.last_begun, self.gangs = set[str](), dict[str, float](), dict[str, ChainRecord]()
        self._lease_clock = LeaseClock(ports.lease_seconds)
        lease, longest = ports.lease_seconds, longest_lease(ports.lease_seconds)

        def times(slot: SlotRecord) -> tuple[float, ...]:
            until = inf if slot.quarantined_until is None else slot.quarantined_until
            return (slot.seen_at - lease, slot.seen_at + lease, until - LONGEST_QUARANTINE, until)

        def is_well(slot: SlotRecord, at: float) -> bool:
            return slot.was_seen(at, lease) and not slot.is_quarantined(at)

        self._alive = TimedSelection[SlotRecord](lambda slot, at: slot.was_seen(at, lease), times)
        self._well = TimedSelection[SlotRecord](is_well, times)
        self._free = TimedSelection[SlotRecord](lambda slot, at: slot.is_free and is_well(slot, at), times)
        self._expired = TimedSelection[ChainRecord](
            lambda row, at: has_expired(row.lease_until, at, longest),
            lambda row: (row.lease_until - longest, row.lease_until),
        )
        self._undelivered = TimedSelection[ChainRecord](
            lambda row, at: row.state == ChainState.READY and row.dispatched_at + DISPATCH_AGAIN_SECONDS < at,
            lambda row: (row.dispatched_at + DISPATCH_AGAIN_SECONDS,),
        )

    @property
    def slots(self) -> Mapping[str, SlotRecord]:
        return self._alive.rows

    @property
    def expired(self) -> list[ChainRecord]:
        """The chains whose lease has expired."""
        return list(self._expired.rows.values())

    @property
    def undelivered(self) -> list[ChainRecord]:
        """The chains that were sent long ago and not claimed."""
        return list(self._undelivered.rows.values())

    def note_outage(self) -> None:
        """The database was unavailable: read all rows at the next look."""
        self._all_again_at = -inf

    def look(self) -> None:
        """Read the changes. Raises `DatabaseUnavailable` and then changes nothing, as where the log has lost events."""
        elapsed = self._ports.elapsed()
        is_whole = elapsed >= self._all_again_at
        with self._ports.records.read() as rows:
            now = rows.now()  # read first, so that a lease renewed meanwhile does not look expired
            changes, versions = rows.changes(None if is_whole else self._mark), rows.studies.busy_versions()
        chains, slots = changes.chains, changes.slots
        if is_whole or chains or slots or versions != self.versions:
            self._ports.plans.check_log()
        self.now, self.versions, self._mark = now, versions, changes.mark
        if is_whole:
            chains, slots = dict.fromkeys(self.live) | chains, dict.fromkeys(self._slots) | slots
            self._all_again_at = elapsed + self._ports.lease_seconds
        self._take_in_chains(chains)
        _apply_changes(slots, self._slots)
        for selection in (self._alive, self._well, self._free):
            selection.look(slots, self._slots, now)

    def _take_in_chains(self, changed: Mapping[str, ChainRecord | None]) -> None:
        _apply_changes(changed, self.live)
        _apply_changes({name: row if row and row.members else None for name, row in changed.items()}, self.gangs)
        for row in filter(None, changed.values()):
            if row.state != ChainState.READY:
                self.last_begun[row.slot] = row.dispatched_at
        self.changed_chains.update(changed)
        self._lease_clock.look(changed, self.now, self._ports.elapsed(), self._ports.clock())
        for selection in (self._expired, self._undelivered):
            selection.look(changed, self.live, self.now)

    def candidates(self) -> Candidates:
        """The slots that may be given work."""
        return Candidates(list(self._well.rows.values()), list(self._free.rows.values()))

    def heard_at(self, row: ChainRecord) -> float:
        """When a live chain was last renewed, in Unix seconds, by the clock of facts at its beginning."""
        return self._lease_clock.renewed_at(row)


def _apply_changes(changed: Mapping[str, Row | None], rows: dict[str, Row]) -> None:
    for name, row in changed.items():
        if row is None:
            rows.pop(name, None)
        else:
            rows[name] = row


def longest_lease(lease_seconds: float) -> float:
    """A lease that ends later than this was given before the database's clock went back."""
    return 2 * lease_seconds


@dataclass(frozen=True, slots=True)
class _Renewal:
    """at: monotonic seconds. epoch: Unix seconds of that clock's zero, as of the chain's beginning."""

    lease_until: float
    at: float
    epoch: float


class LeaseClock:
    """When each lease was last renewed: computed from the lease, and bounded by the look that found it renewed."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._heard: dict[str, _Renewal] = {}
        self._looked_at = -inf

    def look(self, changed: Mapping[str, ChainRecord | None], theirs: float, now: float, wall: float) -> None:
        """theirs: the database's time. now: monotonic. wall: Unix seconds."""
        for name, row in changed.items():
            last = self._heard.pop(name, None)
            if row is None:
                continue
            if last is None or last.lease_until != row.lease_until:
                age = 0.0 if row.lease_until == GIVEN_UP else theirs - (row.lease_until - self._lease_seconds)
                ago = min(max(0.0, age), now - self._looked_at)
                last = _Renewal(row.lease_until, now - ago, wall - now if last is None else last.epoch)
            self._heard[name] = last
        self._looked_at = now

    def renewed_at(self, row: ChainRecord) -> float:
        """In Unix seconds, by the clock of facts at the chain's beginning. The chain was live at the last look."""
        heard = self._heard[row.chain]
        return heard.epoch + heard.at
