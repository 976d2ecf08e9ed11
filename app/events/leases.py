"""Who may write for a chain: its row, not a message. A fence is the number that proves it; ending a chain moves it on.

Every function takes the session of the transaction it is part of, so that a fact and the right to state it commit
together. Time is the database's, or that of the clock given to `Database`. One transaction that takes several slots
takes them in the order of their names. A chain is never taken over: when its lease has run out it is ended, and the
work comes back in a new chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Update,
    bindparam,
    delete,
    func,
    literal,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from app.events.database import insert
from app.events.tables import LIVE, ChainRow, SlotRow

CHAINS = ChainRow.__table__
SLOTS = SlotRow.__table__
HELD = ("running", "saving")
"""The states in which a worker has the chain's lease."""

SQL_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())::float8",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}


class SlotTaken(Exception):
    """The slot is unknown, or has a chain already."""


class Refused(Exception):
    """The chain is not there to be claimed: another worker has it, or it is over."""


class Fenced(Exception):
    """The chain is no longer this worker's: whatever it still has to say must not be written."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chain, proven by `fence`."""

    chain: str
    stream: str
    slot: str
    fence: int
    work: dict[str, Any]
    marks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """What the worker is told at a heartbeat: further steps to evaluate and keep, and whether to stop."""

    marks: tuple[int, ...]
    stop: bool


def now(session: Session) -> float:
    """Unix seconds by the clock that leases go by."""
    return session.scalar(select(_now(session)))


def _now(session: Session) -> ColumnElement[float]:
    clock = session.info.get("clock")
    if clock is not None:
        return literal(clock(), Float)
    return literal_column(SQL_NOW[session.get_bind().dialect.name], Float)


# Slots


def register_slot(session: Session, name: str, device: str, host: str, pid: int) -> None:
    """A worker's process has started on the slot. It holds no model yet; a chain that was there runs out by itself."""
    facts = {"device": device, "host": host, "pid": pid, "seen_at": _now(session), "warm": None}
    row = insert(session, SLOTS).values(name=name, **facts)
    session.execute(row.on_conflict_do_update(index_elements=["name"], set_=facts))


def expire_slot(session: Session, name: str) -> None:
    """Whatever chain the slot still has was its last process's, which is gone: the next tick may end it."""
    session.execute(update(CHAINS).where(CHAINS.c.slot == name, text(LIVE)).values(lease_until=0.0))


def forget_slots(session: Session) -> None:
    """No worker is alive, which whoever asks must know: there are no slots, and what they still had may be ended."""
    session.execute(update(CHAINS).where(text(LIVE)).values(lease_until=0.0))
    session.execute(delete(SLOTS))


def retire_slot(session: Session, name: str) -> None:
    """The slot's worker is going: its chain is to stop at the next step, or at once if not begun, and none follows."""
    mine = update(CHAINS).where(CHAINS.c.slot == name, text(LIVE))
    session.execute(mine.where(CHAINS.c.state == "ready").values(lease_until=0.0))
    session.execute(mine.where(CHAINS.c.state == "running").values(stop=True))
    session.execute(delete(SLOTS).where(SLOTS.c.name == name))


def touch_slot(session: Session, name: str) -> None:
    """The slot's worker is alive."""
    session.execute(update(SLOTS).where(SLOTS.c.name == name).values(seen_at=_now(session)))


def slots(session: Session) -> list[SlotRow]:
    """All slots, by name."""
    return _rows(session, select(SlotRow).order_by(SlotRow.name))


def free_slots(session: Session, seen_within: float) -> list[SlotRow]:
    """The slots that have no chain and whose workers were seen in the last `seen_within` seconds, by name."""
    free = select(SlotRow).where(SlotRow.chain.is_(None), SlotRow.seen_at >= _now(session) - seen_within)
    return _rows(session, free.order_by(SlotRow.name))


def count_slots(session: Session, seen_within: float) -> int:
    """How many slots have a worker that was seen in the last `seen_within` seconds."""
    seen = select(func.count()).select_from(SLOTS).where(SLOTS.c.seen_at >= _now(session) - seen_within)
    return session.scalar(seen) or 0


# The tick's side


def assign(session: Session, chain: str, stream: str, slot: str, work: dict[str, Any], ttl: float) -> None:
    """Give a new chain to a free slot; it must be claimed within `ttl` seconds. Raises `SlotTaken`."""
    take = update(SLOTS).where(SLOTS.c.name == slot, SLOTS.c.chain.is_(None)).values(chain=chain)
    if session.execute(take).rowcount == 0:
        raise SlotTaken(f"Slot {slot} is not free.")
    at = _now(session)
    times = {"lease_until": at + ttl, "dispatched_at": at, "beat_at": at}
    progress = {"state": "ready", "fence": 0, "index": 0, "step": 0, "marks": [], "stop": False}
    session.execute(CHAINS.insert().values(chain=chain, stream=stream, slot=slot, work=work, **progress, **times))


def add_marks(session: Session, chain: str, steps: Iterable[int]) -> None:
    """Ask the chain's worker to evaluate and keep the model at these steps too, if it comes by them."""
    row = session.execute(select(CHAINS.c.marks).where(CHAINS.c.chain == chain).with_for_update()).one_or_none()
    if row is not None:
        session.execute(_chain(chain).values(marks=sorted({*row.marks, *steps})))


def request_stop(session: Session, chain: str) -> None:
    """Ask the chain's worker to stop at the next step."""
    session.execute(_chain(chain).values(stop=True))


def expired(session: Session) -> list[ChainRow]:
    """The chains that were not claimed, or not heard of, in time."""
    return _rows(session, _live().where(ChainRow.lease_until < _now(session)))


def end(session: Session, chain: str, fence: int | None = None) -> None:
    """The chain is over before its end: its slot is free, and what its worker still writes will be refused.

    With `fence`, only for the worker that holds it. Raises `Fenced` when the chain was over, or was another worker's.
    """
    _end(session, chain, *(() if fence is None else (CHAINS.c.fence == fence,)))


def end_expired(session: Session, chain: str) -> None:
    """End the chain if its lease has run out. Raises `Fenced` when it was over, or was heard of after all."""
    _end(session, chain, CHAINS.c.lease_until < _now(session))


def _end(session: Session, chain: str, *holds: ColumnElement[bool]) -> None:
    over = _chain(chain).where(text(LIVE), *holds).values(state="ended", fence=CHAINS.c.fence + 1)
    _free(session, chain, _fenced(session, chain, over, CHAINS.c.slot)[0])


def stale(session: Session, older_than: float) -> list[ChainRow]:
    """The chains that were dispatched more than `older_than` seconds ago and are still waiting to be claimed."""
    waiting = _live().where(ChainRow.state == "ready", ChainRow.dispatched_at < _now(session) - older_than)
    return _rows(session, waiting)


def mark_dispatched(session: Session, chain: str) -> None:
    """The chain's message was sent (again)."""
    session.execute(_chain(chain).values(dispatched_at=_now(session)))


def get(session: Session, chain: str) -> ChainRow | None:
    """The chain's row."""
    rows = _rows(session, select(ChainRow).where(ChainRow.chain == chain))
    return rows[0] if rows else None


def live(session: Session, stream: str | None = None) -> list[ChainRow]:
    """The chains that hold a slot, of one stream or of all."""
    return _rows(session, _live() if stream is None else _live().where(ChainRow.stream == stream))


# The worker's side


def claim(session: Session, chain: str, owner: str, ttl: float) -> Lease:
    """Begin a chain that is ready; the lease lasts `ttl` seconds from here. Raises `Refused`."""
    at = _now(session)
    begun = {"state": "running", "owner": owner, "lease_until": at + ttl, "started_at": at, "beat_at": at}
    take = _chain(chain).where(CHAINS.c.state == "ready").values(fence=CHAINS.c.fence + 1, **begun)
    columns = (CHAINS.c.stream, CHAINS.c.slot, CHAINS.c.fence, CHAINS.c.work, CHAINS.c.marks)
    row = session.execute(take.returning(*columns)).one_or_none()
    if row is None:
        raise Refused(f"Chain {chain} is not ready.")
    return Lease(chain, row.stream, row.slot, row.fence, row.work, tuple(row.marks))


def heartbeat(session: Session, chain: str, fence: int, ttl: float, index: int, step: int) -> Beat:
    """The worker is at `step` of stage `index`; the lease lasts `ttl` seconds from here. Raises `Fenced`."""
    at = _now(session)
    beat = _held(chain, fence).values(lease_until=at + ttl, beat_at=at, index=index, step=step)
    marks, stop = _fenced(session, chain, beat, CHAINS.c.marks, CHAINS.c.stop)
    return Beat(tuple(marks), stop)


PEEK = select(CHAINS.c.marks, CHAINS.c.stop).where(
    CHAINS.c.chain == bindparam("chain"), CHAINS.c.fence == bindparam("fence"), CHAINS.c.state.in_(HELD)
)
"""Built once: it is asked after every training step."""


def peek(session: Session, chain: str, fence: int) -> Beat:
    """What a heartbeat would say, without one. Raises `Fenced`."""
    row = session.execute(PEEK, {"chain": chain, "fence": fence}).one_or_none()
    if row is None:
        raise _not_yours(chain)
    return Beat(tuple(row.marks), row.stop)


def advance(session: Session, chain: str, fence: int, index: int) -> None:
    """The stage before is done, and stage `index` is now under way. Raises `Fenced`."""
    _fenced(session, chain, _held(chain, fence).values(index=index), CHAINS.c.slot)


def release(session: Session, chain: str, fence: int, warm: dict[str, Any] | None) -> None:
    """All is trained, and saving goes on: the slot is free, and holds the model `warm` in memory. Raises `Fenced`."""
    slot = _fenced(session, chain, _held(chain, fence).values(state="saving"), CHAINS.c.slot)[0]
    _free(session, chain, slot, warm)


def finish(session: Session, chain: str, fence: int, warm: dict[str, Any] | None = None) -> None:
    """The whole chain is done, and its slot is free if it was not before. Raises `Fenced`."""
    slot = _fenced(session, chain, _held(chain, fence).values(state="done"), CHAINS.c.slot)[0]
    _free(session, chain, slot, warm)


def guard(session: Session, chain: str, fence: int) -> None:
    """Let through only the worker whose chain this is or, when it was done to its end, was. Raises `Fenced`.

    The row stays locked until the commit, so that nobody ends the chain in between.
    """
    holds = (CHAINS.c.chain == chain, CHAINS.c.fence == fence, CHAINS.c.state.in_([*HELD, "done"]))
    if session.execute(select(CHAINS.c.chain).where(*holds).with_for_update()).one_or_none() is None:
        raise _not_yours(chain)


def _chain(chain: str) -> Update:
    return update(CHAINS).where(CHAINS.c.chain == chain)


def _held(chain: str, fence: int) -> Update:
    """The chain's row, if whoever shows `fence` holds it."""
    return _chain(chain).where(CHAINS.c.fence == fence, CHAINS.c.state.in_(HELD))


def _fenced(session: Session, chain: str, change: Update, *columns: ColumnElement[Any]) -> Any:
    """What `change` returns of the row it changed. Raises `Fenced` where it changed none."""
    row = session.execute(change.returning(*columns)).one_or_none()
    if row is None:
        raise _not_yours(chain)
    return row


def _not_yours(chain: str) -> Fenced:
    return Fenced(f"Chain {chain} is over, or another worker's.")


def _free(session: Session, chain: str, slot: str, warm: dict[str, Any] | None = None) -> None:
    mine = update(SLOTS).where(SLOTS.c.name == slot, SLOTS.c.chain == chain)
    session.execute(mine.values(chain=None, warm=warm))


def _live() -> Any:
    return select(ChainRow).where(text(LIVE)).order_by(ChainRow.chain)


def _rows(session: Session, query: Any) -> list[Any]:
    """NewTrial rows that stay readable after the transaction, and whose attributes nobody writes by accident."""
    rows = list(session.scalars(query.execution_options(populate_existing=True)))
    for row in rows:
        session.expunge(row)
    return rows
