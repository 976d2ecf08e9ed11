"""Runs on: the tick's thread.

How slots and chains stand. Each look reads the rows that have changed since the one before, and what follows from time
alone is asked again when its time has come: a look costs by what changed, not by how many chains run. Once in a lease
all rows are read, and after the database was away: another server may have taken over that has not seen all.
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
"""A chain that nobody claimed is sent again after so long; a second message does no harm."""

GIVEN_UP = 0.0
"""The lease of a chain whose worker said that it is gone, or whose slot another worker has taken."""

Row = TypeVar("Row")


class TimedSelection(Generic[Row]):
    """The rows of which something holds at the time of the last look, by name, in that order.

    holds: whether it does at a time. times: when that may change of a row though the row does not; but where the clock
    goes back, it may at any time.
    """

    def __init__(self, holds: Callable[[Row, float], bool], times: Callable[[Row], Iterable[float]]) -> None:
        self._holds, self._times = holds, times
        self._valid = (inf, -inf)  # from when until when nothing changes by itself
        self.rows: dict[str, Row] = {}

    def look(self, changed: Mapping[str, Row | None], rows: Mapping[str, Row], now: float) -> None:
        """changed: what did since the last look, None for what is gone. rows: all there are now."""
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

    now: by the clock of the leases. versions: how many events each busy plan has. slots: those that are alive. live:
    the chains that nobody has ended, by name. moved: those of which the row has changed; whoever has taken that in
    empties it. begun: by slot, when the last chain was sent that its worker began.
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
        """The chains that were not heard of in time."""
        return list(self._expired.rows.values())

    @property
    def undelivered(self) -> list[ChainRecord]:
        """The chains that were sent long ago and that nobody claimed."""
        return list(self._undelivered.rows.values())

    def note_outage(self) -> None:
        """The database did not answer: what was read before is not relied on any more."""
        self._all_again_at = -inf

    def look(self) -> None:
        """Take in what has changed. Raises `DatabaseUnavailable`; then nothing was."""
        elapsed = self._ports.elapsed()
        is_whole = elapsed >= self._all_again_at
        with self._ports.records.read() as rows:
            now = rows.now()  # first: what is renewed in between is not taken for late
            changes, versions = rows.changes(None if is_whole else self._mark), rows.studies.busy_versions()
        self.now, self.versions, self._mark = now, versions, changes.mark
        chains, slots = changes.chains, changes.slots
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
        """When the worker of a live chain was heard of, in Unix seconds, by the clock of facts as the chain began."""
        return self._lease_clock.renewed_at(row)


def _apply_changes(changed: Mapping[str, Row | None], rows: dict[str, Row]) -> None:
    for name, row in changed.items():
        if row is None:
            rows.pop(name, None)
        else:
            rows[name] = row


def longest_lease(lease_seconds: float) -> float:
    """A lease that lasts for longer from here was given before the clock of the leases went back."""
    return 2 * lease_seconds


@dataclass(frozen=True, slots=True)
class _Renewal:
    """at: by the clock that does not jump. epoch: when that clock was at 0, in Unix seconds as the chain began."""

    lease_until: float
    at: float
    epoch: float


class LeaseClock:
    """A lease tells it by the database's clock; which look found the lease renewed, by ours. The nearer one counts."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._heard: dict[str, _Renewal] = {}
        self._looked_at = -inf

    def look(self, changed: Mapping[str, ChainRecord | None], theirs: float, now: float, wall: float) -> None:
        """theirs: the time by the database's clock. now: by the one that does not jump. wall: in Unix seconds."""
        for name, row in changed.items():
            last = self._heard.pop(name, None)
            if row is None:
                continue
            if last is None or last.lease_until != row.lease_until:
                ago = min(max(0.0, self._lease_age(row, theirs)), now - self._looked_at)
                last = _Renewal(row.lease_until, now - ago, wall - now if last is None else last.epoch)
            self._heard[name] = last
        self._looked_at = now

    def renewed_at(self, row: ChainRecord) -> float:
        """In Unix seconds, by the clock of facts as it was when the chain began; it was live at the last look."""
        heard = self._heard[row.chain]
        return heard.epoch + heard.at

    def _lease_age(self, row: ChainRecord, now: float) -> float:
        """By the database's clock."""
        return 0.0 if row.lease_until == GIVEN_UP else now - (row.lease_until - self._lease_seconds)
