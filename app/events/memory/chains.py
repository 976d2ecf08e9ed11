"""The tables in memory, with transactions, and the rows of chains.

Rows are immutable: a change replaces a row, and the old one is kept for a rollback.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from threading import RLock
from typing import Any, Generic, TypeVar

from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainState
from app.events.rows import (
    AT_WORK,
    HELD,
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    ChainsPort,
    Installation,
    Lease,
    LeaseFence,
    SlotRecord,
    SlotTaken,
    StudyRecord,
    TokenRecord,
    has_expired,
    not_yours,
)

Row = TypeVar("Row")
Undo = list[Callable[[], object]]


class Table(Generic[Row]):
    """Rows by key. Every change records how to undo it. revision: the number of changes."""

    def __init__(self, undo: Undo) -> None:
        self._rows: dict[str, Row] = {}
        self._undo, self.revision = undo, 0
        self._changed_at: dict[str, int] = {}  # the revision of each row's last change, oldest first

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def values(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def changed_since(self, since: int | None) -> dict[str, Row | None]:
        """The rows that changed after a revision, None for deleted ones; all rows if `since` is None."""
        if since is None:
            return dict(self._rows)
        new = takewhile(lambda change: change[1] > since, reversed(self._changed_at.items()))
        return {key: self._rows.get(key) for key, _ in new}

    def put(self, key: str, row: Row) -> None:
        self._change(key, row)

    def remove(self, key: str) -> None:
        self._change(key, None)

    def _change(self, key: str, row: Row | None) -> None:
        """A rollback does not undo the revision, so a reader may look at the row once more than needed."""
        before = self._rows.get(key)
        self._undo.append(lambda: self._set(key, before))
        self.revision += 1
        self._changed_at.pop(key, None)
        self._changed_at[key] = self.revision
        self._set(key, row)

    def _set(self, key: str, row: Row | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


class LiveChains(Table[ChainRecord]):
    """The chains that are not over."""

    def __init__(self, undo: Undo) -> None:
        super().__init__(undo)
        self.by_slot, self.by_stream = defaultdict[str, set[str]](set), Counter[str]()

    def chains_on(self, slot: str) -> list[ChainRecord]:
        """The chains that have the slot, or had it and are still being saved."""
        return [self._rows[name] for name in sorted(self.by_slot[slot])]

    def _set(self, key: str, row: ChainRecord | None) -> None:
        before = self._rows.get(key)
        if row is not None and before is None:
            self.by_slot[row.slot].add(key)
            self.by_stream[row.stream] += 1
        elif row is None and before is not None:
            self.by_slot[before.slot].discard(key)
            self.by_stream[before.stream] -= 1
        super()._set(key, row)


@dataclass(frozen=True, slots=True)
class Tick:
    """The last tick of a process."""

    process: str
    at: float
    demand: Mapping[str, Any] | None
    held_up: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None


class Tables:
    """All tables, and the lock of their transactions. clock: Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = RLock()
        self._undo: Undo = []
        self.studies: Table[StudyRecord] = Table(self._undo)
        self.installation = Installation("memory", None)
        self.tokens: Table[TokenRecord] = Table(self._undo)
        self.slots: Table[SlotRecord] = Table(self._undo)
        self.live = LiveChains(self._undo)
        self.over: Table[ChainRecord] = Table(self._undo)
        self.schedulers: Table[Tick] = Table(self._undo)
        self.versions: dict[str, int] = {}  # of each stream; only the log moves them

    def gangs_with(self, slot: str) -> list[ChainRecord]:
        """The chains under way that a slot is lent to, even if its own row is gone."""
        return [row for row in self.live.values() if slot in row.members and row.state in AT_WORK]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """An exclusive transaction, rolled back if the block raises."""
        with self.lock:
            mark = len(self._undo)
            try:
                yield
            except BaseException:
                while len(self._undo) > mark:
                    self._undo.pop()()
                raise
            if mark == 0:
                self._undo.clear()


class MemoryChains(ChainsPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def assign(
        self, chain: str, stream: str, slot: str, assignment: ChainAssignment, ttl: float, beside: str | None = None
    ) -> None:
        row = self._tables.slots.get(slot)
        if row is None or row.chain != beside or row.lent_to is not None:
            raise SlotTaken(f"Slot {slot} is not free.")
        self._tables.slots.put(slot, replace(row, chain=beside or chain))
        members = self._lend(chain, assignment.members)
        at = self._tables.clock()
        new = ChainRecord(
            chain=chain,
            stream=stream,
            slot=slot,
            assignment=assignment,
            lease_until=at + ttl,
            dispatched_at=at,
            members=members,
        )
        self._put(new)

    def _lend(self, chain: str, members: Sequence[str]) -> dict[str, str]:
        owners = dict[str, str]()
        for name in sorted(members):
            row = self._tables.slots.get(name)
            if row is None or not row.is_free:
                raise SlotTaken(f"Slot {name} is not free.")
            self._tables.slots.put(name, replace(row, lent_to=chain, resident_model=None))
            owners[name] = row.owner
        return owners

    def ask_evaluation(self, chain: str, steps: Iterable[int]) -> None:
        if (row := self._tables.live.get(chain)) is not None:
            self._put(replace(row, extra_eval_steps=tuple(sorted({*row.extra_eval_steps, *steps}))))

    def ask_states(self, chain: str, steps: Iterable[int]) -> None:
        if (row := self._tables.live.get(chain)) is not None:
            self._put(replace(row, branch_steps=tuple(sorted({*row.branch_steps, *steps}))))

    def ask_stop(self, chain: str) -> None:
        if (row := self._tables.live.get(chain)) is not None:
            self._put(replace(row, stop=True))

    def ask_preempt(self, chain: str) -> None:
        if (row := self._tables.live.get(chain)) is not None:
            self._put(replace(row, preempt=True))

    def end(self, chain: str, fence: LeaseFence | None = None) -> None:
        row = self._tables.live.get(chain)
        if row is None or (fence is not None and not row.is_held_by(fence)):
            raise not_yours(chain)
        self._close(replace(row, state=ChainState.ENDED, fence=row.fence + 1))
        self._free(row, None)

    def end_expired(self, chain: str, longest: float = inf) -> None:
        row = self._tables.live.get(chain)
        if row is None or not has_expired(row.lease_until, self._tables.clock(), longest):
            raise not_yours(chain)
        self.end(chain)

    def mark_dispatched(self, chain: str) -> None:
        if (row := self._tables.live.get(chain)) is not None:
            self._put(replace(row, dispatched_at=self._tables.clock()))

    def get(self, chain: str) -> ChainRecord | None:
        return self._tables.live.get(chain) or self._tables.over.get(chain)

    def live(self, stream: str | None = None) -> list[ChainRecord]:
        rows = (row for row in self._tables.live.values() if stream is None or row.stream == stream)
        return sorted(rows, key=lambda row: row.chain)

    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        row = self._tables.live.get(chain)
        if row is None or row.state != ChainState.READY:
            raise ChainNotClaimable(f"Chain {chain} is not ready.")
        until = self._tables.clock() + ttl
        running = replace(row, state=ChainState.RUNNING, owner=owner, fence=row.fence + 1, lease_until=until)
        self._put(running)
        return running.lease

    def heartbeat(self, chain: str, fence: LeaseFence, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        row = self._get_held(chain, fence)
        left = tuple(at for at in row.extra_eval_steps if at >= step or at in kept)
        beat = replace(row, lease_until=self._tables.clock() + ttl, step=step, extra_eval_steps=left)
        self._put(beat)
        return beat.flags

    def flags(self, chain: str, fence: LeaseFence) -> ChainFlags:
        return self._get_held(chain, fence).flags

    def advance(self, chain: str, fence: LeaseFence, index: int) -> None:
        self._put(replace(self._get_held(chain, fence), index=index))

    def release(self, chain: str, fence: LeaseFence, resident_model: Mapping[str, Any] | None) -> None:
        row = replace(self._get_held(chain, fence), state=ChainState.SAVING)
        self._put(row)
        self._free(row, resident_model)

    def finish(self, chain: str, fence: LeaseFence) -> None:
        row = replace(self._get_held(chain, fence), state=ChainState.DONE)
        self._close(row)
        self._free(row, None)

    def report(self, chain: str, fence: LeaseFence) -> None:
        row = self.get(chain)
        is_known = row is not None and row.is_held_by(fence) and row.reports == fence.reports
        if row is None or not is_known or row.state not in (*HELD, ChainState.DONE):
            raise not_yours(chain)
        table = self._tables.over if row.state == ChainState.DONE else self._tables.live
        table.put(chain, replace(row, reports=row.reports + 1))

    def _get_held(self, chain: str, fence: LeaseFence) -> ChainRecord:
        row = self._tables.live.get(chain)
        if row is None or not row.is_held_by(fence) or row.state not in HELD:
            raise not_yours(chain)
        return row

    def _put(self, row: ChainRecord) -> None:
        self._tables.live.put(row.chain, row)

    def _close(self, row: ChainRecord) -> None:
        self._tables.live.remove(row.chain)
        self._tables.over.put(row.chain, row)

    def _free(self, row: ChainRecord, resident_model: Mapping[str, Any] | None) -> None:
        for name in row.members:
            member = self._tables.slots.get(name)
            if member is not None and member.lent_to == row.chain:
                self._tables.slots.put(name, replace(member, lent_to=None))
        slot = self._tables.slots.get(row.slot)
        if slot is not None and slot.chain == row.chain:
            model = dict(resident_model) if resident_model and not row.members else None
            left = [each.chain for each in self._tables.live.chains_on(slot.name) if each.state in AT_WORK]
            self._tables.slots.put(slot.name, replace(slot, chain=min(left, default=None), resident_model=model))
