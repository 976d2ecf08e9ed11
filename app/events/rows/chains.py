"""The rows of chains in a database."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import Column, ColumnElement, Text, Update, bindparam, cast, func, select, text, update

from app.domain.chain_assignment import ChainAssignment, Unreadable
from app.domain.terms import ChainState
from app.events.database import SqlSession
from app.events.row_types import (
    AT_WORK,
    HELD,
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    Lease,
    LeaseFence,
    SlotTaken,
    not_yours,
)
from app.events.rows.ports import ChainsPort
from app.events.rows.sql import was_written_since
from app.events.tables import CHAINS, LIVE, SLOTS

FLAG_COLUMNS = (CHAINS.c.extra_eval_steps, CHAINS.c.stop, CHAINS.c.preempt, CHAINS.c.branch_steps)

FREE = SLOTS.c.chain.is_(None) & SLOTS.c.lent_to.is_(None)
SLOT_COLUMNS = (CHAINS.c.slot, CHAINS.c.members)

MATCHES = (
    CHAINS.c.chain == bindparam("its_chain"),
    CHAINS.c.fence == bindparam("its_number"),
    CHAINS.c.owner == bindparam("its_owner"),
)

FLAGS = select(*FLAG_COLUMNS).where(*MATCHES, CHAINS.c.reports >= bindparam("its_reports"), CHAINS.c.state.in_(HELD))
REPORT = (
    update(CHAINS)
    .where(*MATCHES, CHAINS.c.reports == bindparam("its_reports"), CHAINS.c.state.in_([*HELD, ChainState.DONE]))
    .values(reports=CHAINS.c.reports + 1)
    .returning(CHAINS.c.chain)
)
"""Built once, because workers run these statements all the time."""

COLUMNS = [
    cast(column, Text).label(column.name) if column is CHAINS.c.assignment else column for column in CHAINS.columns
]
"""The assignment is selected as text, so that its parsed form can be cached by it."""

ONE_CHAIN = select(*COLUMNS).where(CHAINS.c.chain == bindparam("chain"))
LIVE_CHAINS = select(*COLUMNS).where(text(LIVE)).order_by(CHAINS.c.chain)


class Chains(ChainsPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    # The scheduler's side

    def assign(
        self, chain: str, stream: str, slot: str, assignment: ChainAssignment, ttl: float, beside: str | None = None
    ) -> None:
        has = FREE if beside is None else SLOTS.c.chain == beside
        take = update(SLOTS).where(SLOTS.c.name == slot, has).values(chain=beside or chain)
        if self._session.execute(take.returning(SLOTS.c.name)).one_or_none() is None:
            raise SlotTaken(f"Slot {slot} is not free.")
        members = self._lend(chain, assignment.members)
        at = self._session.now()
        progress = {"state": ChainState.READY, "fence": 0, "reports": 0, "index": 0, "step": 0}
        progress |= {"extra_eval_steps": [], "stop": False, "preempt": False, "branch_steps": []}
        columns: dict[str, Any] = {"chain": chain, "stream": stream, "slot": slot, "assignment": assignment.to_json()}
        columns |= {"members": members or None}
        self._session.execute(CHAINS.insert().values(**columns, **progress, lease_until=at + ttl, dispatched_at=at))

    def _lend(self, chain: str, members: Sequence[str]) -> dict[str, str]:
        """Lend all of these slots, or raise. In the order of names, as everywhere, to avoid deadlocks."""
        owners = dict[str, str]()
        for name in sorted(members):
            lend = update(SLOTS).where(SLOTS.c.name == name, FREE).values(lent_to=chain, resident_model=None)
            row = self._session.execute(lend.returning(SLOTS.c.owner)).one_or_none()
            if row is None:
                raise SlotTaken(f"Slot {name} is not free.")
            owners[name] = row.owner
        return owners

    def ask_evaluation(self, chain: str, steps: Iterable[int]) -> None:
        self._add(chain, CHAINS.c.extra_eval_steps, steps)

    def ask_states(self, chain: str, steps: Iterable[int]) -> None:
        self._add(chain, CHAINS.c.branch_steps, steps)

    def ask_stop(self, chain: str) -> None:
        self._session.execute(_update_chain(chain).values(stop=True))

    def ask_preempt(self, chain: str) -> None:
        self._session.execute(_update_chain(chain).values(preempt=True))

    def end(self, chain: str, fence: LeaseFence | None = None) -> None:
        self._end(chain, *(() if fence is None else _held_by(fence)))

    def end_expired(self, chain: str, longest: float = inf) -> None:
        self._end(chain, self._is_expired(longest))

    def mark_dispatched(self, chain: str) -> None:
        self._session.execute(_update_chain(chain).values(dispatched_at=self._session.now()))

    def get(self, chain: str) -> ChainRecord | None:
        row = self._session.execute(ONE_CHAIN, {"chain": chain}).one_or_none()
        return None if row is None else _record(row)

    def live(self, stream: str | None = None) -> list[ChainRecord]:
        query = LIVE_CHAINS if stream is None else LIVE_CHAINS.where(CHAINS.c.stream == stream)
        return [_record(row) for row in self._session.execute(query)]

    def rows_written_since(self, writer: int | None) -> list[ChainRecord]:
        """The live chains, see `Mark`."""
        query = LIVE_CHAINS if writer is None else LIVE_CHAINS.where(was_written_since("chains", writer))
        return [_record(row) for row in self._session.execute(query)]

    # The worker's side

    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        running = {"state": ChainState.RUNNING, "owner": owner, "lease_until": self._session.now() + ttl}
        ready = (
            _update_chain(chain).where(CHAINS.c.state == ChainState.READY).values(fence=CHAINS.c.fence + 1, **running)
        )
        row = self._session.execute(ready.returning(*COLUMNS)).one_or_none()
        if row is None:
            raise ChainNotClaimable(f"Chain {chain} is not ready.")
        return _record(row).lease

    def heartbeat(self, chain: str, fence: LeaseFence, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        beat = _update_held(chain, fence).values(lease_until=self._session.now() + ttl, step=step)
        row = self._change_or_raise(chain, beat, *FLAG_COLUMNS)
        left = tuple(at for at in row.extra_eval_steps if at >= step or at in kept)
        if len(left) < len(row.extra_eval_steps):
            self._session.execute(_update_chain(chain).values(extra_eval_steps=list(left)))
        return replace(_flags(row), extra_eval_steps=left)

    def flags(self, chain: str, fence: LeaseFence) -> ChainFlags:
        row = self._session.execute(FLAGS, _given(chain, fence)).one_or_none()
        if row is None:
            raise not_yours(chain)
        return _flags(row)

    def advance(self, chain: str, fence: LeaseFence, index: int) -> None:
        self._change_or_raise(chain, _update_held(chain, fence).values(index=index), CHAINS.c.slot)

    def release(self, chain: str, fence: LeaseFence, resident_model: Mapping[str, Any] | None) -> None:
        saving = _update_held(chain, fence).values(state=ChainState.SAVING)
        self._free(chain, self._change_or_raise(chain, saving, *SLOT_COLUMNS), resident_model)

    def finish(self, chain: str, fence: LeaseFence) -> None:
        done = _update_held(chain, fence).values(state=ChainState.DONE)
        self._free(chain, self._change_or_raise(chain, done, *SLOT_COLUMNS), None)

    def report(self, chain: str, fence: LeaseFence) -> None:
        if self._session.execute(REPORT, _given(chain, fence)).one_or_none() is None:
            raise not_yours(chain)

    def _add(self, chain: str, column: Column[Any], steps: Iterable[int]) -> None:
        row = self._session.execute(select(column).where(CHAINS.c.chain == chain).with_for_update()).one_or_none()
        if row is not None:
            self._session.execute(_update_chain(chain).values({column: sorted({*(row[0] or ()), *steps})}))

    def _is_expired(self, longest: float) -> ColumnElement[bool]:
        at, until = self._session.now(), CHAINS.c.lease_until
        return (until < at) if longest == inf else (until < at) | (until > at + longest)

    def _end(self, chain: str, *conditions: ColumnElement[bool]) -> None:
        over = {"state": ChainState.ENDED, "fence": CHAINS.c.fence + 1}
        ended = _update_chain(chain).where(text(LIVE), *conditions).values(**over)
        self._free(chain, self._change_or_raise(chain, ended, *SLOT_COLUMNS), None)

    def _change_or_raise(self, chain: str, change: Update, *columns: ColumnElement[Any]) -> Any:
        """The columns of the row that `change` changed. Raises `Fenced` if it changed none."""
        row = self._session.execute(change.returning(*columns)).one_or_none()
        if row is None:
            raise not_yours(chain)
        return row

    def _free(self, chain: str, place: Any, resident_model: Mapping[str, Any] | None) -> None:
        """Free the slot and the members. If the slot trains other chains of a pack, it gets one of those instead."""
        slot = place.slot
        if place.members:
            self._session.execute(update(SLOTS).where(SLOTS.c.lent_to == chain).values(lent_to=None))
        mine = update(SLOTS).where(SLOTS.c.name == slot, SLOTS.c.chain == chain)
        left = select(func.min(CHAINS.c.chain)).where(CHAINS.c.slot == slot, CHAINS.c.state.in_(AT_WORK))
        model = resident_model and dict(resident_model) if not place.members else None
        self._session.execute(mine.values(chain=left.scalar_subquery(), resident_model=model))


def _flags(row: Any) -> ChainFlags:
    return ChainFlags(tuple(row.extra_eval_steps), row.stop, row.preempt, tuple(row.branch_steps))


def _update_chain(chain: str) -> Update:
    return update(CHAINS).where(CHAINS.c.chain == chain)


def _update_held(chain: str, fence: LeaseFence) -> Update:
    """An update of the chain's row, if `fence` holds it."""
    return _update_chain(chain).where(*_held_by(fence), CHAINS.c.state.in_(HELD))


def _held_by(fence: LeaseFence) -> tuple[ColumnElement[bool], ...]:
    """As `ChainRecord.is_held_by`."""
    return CHAINS.c.fence == fence.number, CHAINS.c.owner == fence.owner, CHAINS.c.reports >= fence.reports


def _given(chain: str, fence: LeaseFence) -> dict[str, Any]:
    """The values that `FLAGS` and `REPORT` ask for."""
    return {"its_chain": chain, "its_number": fence.number, "its_owner": fence.owner, "its_reports": fence.reports}


def _record(row: Any) -> ChainRecord:
    values, flags = dict(row._mapping), _flags(row)
    values["assignment"] = _parse(row.assignment)
    values |= {"extra_eval_steps": flags.extra_eval_steps, "branch_steps": flags.branch_steps}
    return ChainRecord(**values | {"members": row.members or {}})


def _parse(text: str) -> ChainAssignment | Unreadable:
    """The same object for the same text as long as anything holds it, as the scheduler does with live chains, whose
    rows it reads at each heartbeat.
    """
    if (assignment := _PARSED.get(text)) is None:
        assignment = _PARSED[text] = ChainAssignment.from_json(json.loads(text))
    return assignment


_PARSED: WeakValueDictionary[str, ChainAssignment | Unreadable] = WeakValueDictionary()
