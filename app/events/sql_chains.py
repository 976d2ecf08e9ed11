"""The rows of chains in a database."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Float,
    Insert,
    Text,
    Update,
    bindparam,
    cast,
    func,
    select,
    text,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from app.domain.chain_assignment import ChainAssignment, Unreadable
from app.domain.terms import ChainState
from app.events.database import SqlSession, was_written_since
from app.events.rows import (
    AT_WORK,
    HELD,
    LIVE,
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    ChainsPort,
    Lease,
    LeaseFence,
    SlotTaken,
    not_yours,
)
from app.events.tables import CHAINS, SLOTS

FLAG_COLUMNS = (CHAINS.c.extra_eval_steps, CHAINS.c.stop, CHAINS.c.preempt, CHAINS.c.branch_steps)

FREE = SLOTS.c.chain.is_(None) & SLOTS.c.lent_to.is_(None)
SLOT_COLUMNS = (CHAINS.c.slot, CHAINS.c.members)

# Statements that workers and the scheduler run for each chain are built once, with parameters: SQLAlchemy takes ten
# times as long to build and identify a statement as to run a known one.

IS_IT = CHAINS.c.chain == bindparam("its_chain")
MATCHES = (IS_IT, CHAINS.c.fence == bindparam("its_number"), CHAINS.c.owner == bindparam("its_owner"))
IS_HELD = (*MATCHES, CHAINS.c.reports >= bindparam("its_reports"), CHAINS.c.state.in_(HELD))
"""As `ChainRecord.is_held_by`, and the chain is not over."""

FLAGS = select(*FLAG_COLUMNS).where(*IS_HELD)
REPORT = (
    update(CHAINS)
    .where(*MATCHES, CHAINS.c.reports == bindparam("its_reports"), CHAINS.c.state.in_([*HELD, ChainState.DONE]))
    .values(reports=CHAINS.c.reports + 1)
    .returning(CHAINS.c.chain)
)
ADVANCE = update(CHAINS).where(*IS_HELD).values(index=bindparam("next")).returning(CHAINS.c.slot)
SET_STATE = update(CHAINS).where(*IS_HELD).values(state=bindparam("new_state")).returning(*SLOT_COLUMNS)

TAKE_FREE = update(SLOTS).where(SLOTS.c.name == bindparam("slot"), FREE)
TAKE_FREE = TAKE_FREE.values(chain=bindparam("taken_by")).returning(SLOTS.c.name)
TAKE_BESIDE = update(SLOTS).where(SLOTS.c.name == bindparam("slot"), SLOTS.c.chain == bindparam("taken_by"))
TAKE_BESIDE = TAKE_BESIDE.values(chain=SLOTS.c.chain).returning(SLOTS.c.name)
"""Take a slot for a chain, or for a pack whose first chain has taken it."""

FREE_MEMBERS = update(SLOTS).where(SLOTS.c.lent_to == bindparam("its_chain")).values(lent_to=None)
ANOTHER_AT_WORK = select(func.min(CHAINS.c.chain)).where(
    CHAINS.c.slot == bindparam("its_slot"), CHAINS.c.state.in_(AT_WORK)
)
FREE_SLOT = (
    update(SLOTS)
    .where(SLOTS.c.name == bindparam("its_slot"), SLOTS.c.chain == bindparam("its_chain"))
    .values(
        chain=ANOTHER_AT_WORK.scalar_subquery(), resident_model=bindparam("model", type_=SLOTS.c.resident_model.type)
    )
)


@lru_cache
def _insertion(now: ColumnElement[float]) -> Insert:
    return CHAINS.insert().values(lease_until=now + bindparam("ttl", type_=Float), dispatched_at=now)


@lru_cache
def _claiming(now: ColumnElement[float]) -> ReturningUpdate[Any]:
    claim = update(CHAINS).where(IS_IT, CHAINS.c.state == ChainState.READY)
    running = {"state": ChainState.RUNNING, "fence": CHAINS.c.fence + 1, "owner": bindparam("new_owner")}
    return claim.values(**running, lease_until=now + bindparam("ttl", type_=Float)).returning(*COLUMNS)


@lru_cache
def _heartbeat(now: ColumnElement[float]) -> ReturningUpdate[Any]:
    beat = update(CHAINS).where(*IS_HELD).values(lease_until=now + bindparam("ttl", type_=Float), step=bindparam("at"))
    return beat.returning(*FLAG_COLUMNS)


COLUMNS = [
    cast(column, Text).label(column.name) if column is CHAINS.c.assignment else column for column in CHAINS.columns
]
"""The assignment is selected as text, so that its parsed form can be cached by it."""

ONE_CHAIN = select(*COLUMNS).where(CHAINS.c.chain == bindparam("chain"))
LIVE_CHAINS = select(*COLUMNS).where(text(LIVE)).order_by(CHAINS.c.chain)
LIVE_CHAINS_OF = LIVE_CHAINS.where(CHAINS.c.stream == bindparam("stream"))
NEW_CHAINS = LIVE_CHAINS.where(was_written_since("chains"))


class Chains(ChainsPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    # The scheduler's side

    def assign(
        self, chain: str, stream: str, slot: str, assignment: ChainAssignment, ttl: float, beside: str | None = None
    ) -> None:
        take = TAKE_FREE if beside is None else TAKE_BESIDE
        if self._session.execute(take, {"slot": slot, "taken_by": beside or chain}).one_or_none() is None:
            raise SlotTaken(f"Slot {slot} is not free.")
        members = self._lend(chain, assignment.members)
        progress = {"state": ChainState.READY, "fence": 0, "reports": 0, "index": 0, "step": 0}
        progress |= {"extra_eval_steps": [], "stop": False, "preempt": False, "branch_steps": []}
        columns: dict[str, Any] = {"chain": chain, "stream": stream, "slot": slot, "assignment": assignment.to_json()}
        columns |= {"members": members or None, "ttl": ttl}
        self._session.execute(_insertion(self._session.now), columns | progress)

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
        self._session.execute(_update_chain(chain).values(dispatched_at=self._session.now))

    def get(self, chain: str) -> ChainRecord | None:
        row = self._session.execute(ONE_CHAIN, {"chain": chain}).one_or_none()
        return None if row is None else _record(row)

    def live(self, stream: str | None = None) -> list[ChainRecord]:
        query, given = (LIVE_CHAINS, None) if stream is None else (LIVE_CHAINS_OF, {"stream": stream})
        return [_record(row) for row in self._session.execute(query, given)]

    def rows_written_since(self, writer: int | None) -> list[ChainRecord]:
        """The live chains, see `Mark`."""
        query, given = (LIVE_CHAINS, None) if writer is None else (NEW_CHAINS, {"writer": writer})
        return [_record(row) for row in self._session.execute(query, given)]

    # The worker's side

    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        given = {"its_chain": chain, "new_owner": owner, "ttl": ttl}
        row = self._session.execute(_claiming(self._session.now), given).one_or_none()
        if row is None:
            raise ChainNotClaimable(f"Chain {chain} is not ready.")
        return _record(row).lease

    def heartbeat(self, chain: str, fence: LeaseFence, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        row = self._change_held(chain, fence, _heartbeat(self._session.now), ttl=ttl, at=step)
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
        self._change_held(chain, fence, ADVANCE, next=index)

    def release(self, chain: str, fence: LeaseFence, resident_model: Mapping[str, Any] | None) -> None:
        place = self._change_held(chain, fence, SET_STATE, new_state=ChainState.SAVING)
        self._free(chain, place, resident_model)

    def finish(self, chain: str, fence: LeaseFence) -> None:
        self._free(chain, self._change_held(chain, fence, SET_STATE, new_state=ChainState.DONE), None)

    def report(self, chain: str, fence: LeaseFence) -> None:
        self._change_held(chain, fence, REPORT)

    def _add(self, chain: str, column: Column[Any], steps: Iterable[int]) -> None:
        row = self._session.execute(select(column).where(CHAINS.c.chain == chain).with_for_update()).one_or_none()
        if row is not None:
            self._session.execute(_update_chain(chain).values({column: sorted({*(row[0] or ()), *steps})}))

    def _is_expired(self, longest: float) -> ColumnElement[bool]:
        at, until = self._session.now, CHAINS.c.lease_until
        return (until < at) if longest == inf else (until < at) | (until > at + longest)

    def _end(self, chain: str, *conditions: ColumnElement[bool]) -> None:
        over = {"state": ChainState.ENDED, "fence": CHAINS.c.fence + 1}
        ended = _update_chain(chain).where(text(LIVE), *conditions).values(**over)
        place = self._session.execute(ended.returning(*SLOT_COLUMNS)).one_or_none()
        if place is None:
            raise not_yours(chain)
        self._free(chain, place, None)

    def _change_held(self, chain: str, fence: LeaseFence, change: Executable, **given: Any) -> Any:
        """The row that `change` changed. Raises `Fenced` if it changed none."""
        row = self._session.execute(change, _given(chain, fence) | given).one_or_none()
        if row is None:
            raise not_yours(chain)
        return row

    def _free(self, chain: str, place: Any, resident_model: Mapping[str, Any] | None) -> None:
        """Free the slot and the members. If the slot trains other chains of a pack, it gets one of those instead."""
        if place.members:
            self._session.execute(FREE_MEMBERS, {"its_chain": chain})
        model = resident_model and dict(resident_model) if not place.members else None
        self._session.execute(FREE_SLOT, {"its_slot": place.slot, "its_chain": chain, "model": model})


def _flags(row: Any) -> ChainFlags:
    return ChainFlags(tuple(row.extra_eval_steps), row.stop, row.preempt, tuple(row.branch_steps))


def _update_chain(chain: str) -> Update:
    return update(CHAINS).where(CHAINS.c.chain == chain)


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
