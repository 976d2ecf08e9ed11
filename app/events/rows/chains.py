"""Who may write for a chain: its row, not a message. A fence is the number that proves it; ending a chain moves it on.

A chain is never taken over: when its lease has run out it is ended, and the work comes back in a new chain.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Update, bindparam, func, select, text, update
from sqlalchemy.orm import Session

from app.domain.states import ChainState
from app.events.rows.clock import fresh_rows, now
from app.events.rows.errors import ChainNotClaimable, Fenced, SlotTaken
from app.events.tables import CHAINS, LIVE, SLOTS, ChainRow

HELD = (ChainState.RUNNING, ChainState.SAVING)
"""The states in which a worker has the chain's lease."""

AT_WORK = (ChainState.READY, ChainState.RUNNING)
"""The states in which a chain has its slot."""

WANTED = (CHAINS.c.extra_eval_steps, CHAINS.c.stop, CHAINS.c.preempt, CHAINS.c.branch_steps)

FLAGS = select(*WANTED).where(
    CHAINS.c.chain == bindparam("chain"), CHAINS.c.fence == bindparam("fence"), CHAINS.c.state.in_(HELD)
)
"""Built once: workers ask it all the time."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chain, proven by `fence`."""

    chain: str
    stream: str
    slot: str
    fence: int
    assignment: Mapping[str, Any]
    flags: ChainFlags


@dataclass(frozen=True, slots=True)
class ChainFlags:
    """What the scheduler wants of a chain by now: further steps to evaluate and keep, and whether to end.

    stop: nobody wants it any more. preempt: its slot is another study's: it ends after the step under way, however long
    that takes, with its state kept. branch_steps: where trials would branch off that were not known when it began.
    """

    extra_eval_steps: tuple[int, ...] = ()
    stop: bool = False
    preempt: bool = False
    branch_steps: tuple[int, ...] = ()

    @property
    def end(self) -> bool:
        """Whether to end after the step under way."""
        return self.stop or self.preempt


class Chains:
    """The rows of chains, inside one transaction, so that a fact and the right to state it commit together."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # The scheduler's side

    def assign(
        self,
        chain: str,
        stream: str,
        slot: str,
        assignment: Mapping[str, Any],
        ttl: float,
        beside: str | None = None,
    ) -> None:
        """Give a new chain to a free slot; it must be claimed within `ttl` seconds. Raises `SlotTaken`.

        beside: the chain that the slot has, and is to train together with this one.
        """
        has = SLOTS.c.chain.is_(None) if beside is None else SLOTS.c.chain == beside
        take = update(SLOTS).where(SLOTS.c.name == slot, has).values(chain=beside or chain)
        if self._session.execute(take.returning(SLOTS.c.name)).one_or_none() is None:
            raise SlotTaken(f"Slot {slot} is not free.")
        at = now(self._session)
        progress = {"state": ChainState.READY, "fence": 0, "index": 0, "step": 0, "extra_eval_steps": []}
        progress |= {"stop": False, "preempt": False, "branch_steps": []}
        given = {"chain": chain, "stream": stream, "slot": slot, "assignment": dict(assignment)}
        self._session.execute(CHAINS.insert().values(**given, **progress, lease_until=at + ttl, dispatched_at=at))

    def ask_evaluation(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the chain's worker to evaluate and keep the model at these steps too, if it comes by them."""
        self._add(chain, CHAINS.c.extra_eval_steps, steps)

    def ask_states(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the chain's worker to keep its state at these steps too, where that costs less than to train it again."""
        self._add(chain, CHAINS.c.branch_steps, steps)

    def ask_stop(self, chain: str) -> None:
        """Ask the chain's worker to stop at the next step."""
        self._session.execute(_row(chain).values(stop=True))

    def ask_preempt(self, chain: str) -> None:
        """Ask the chain's worker to keep its state after the step under way, and leave the slot to others."""
        self._session.execute(_row(chain).values(preempt=True))

    def end(self, chain: str, fence: int | None = None) -> None:
        """The chain is over before its end: its slot is free, and what its worker still writes will be refused.

        With `fence`, only for the worker that holds it. Raises `Fenced` if the chain was over, or another worker's.
        """
        self._end(chain, *(() if fence is None else (CHAINS.c.fence == fence,)))

    def end_expired(self, chain: str, longest: float = inf) -> None:
        """End the chain if its lease `has_expired`. Raises `Fenced` when it was over, or was heard of after all."""
        self._end(chain, self._is_expired(longest))

    def mark_dispatched(self, chain: str) -> None:
        """The chain's message was sent (again)."""
        self._session.execute(_row(chain).values(dispatched_at=now(self._session)))

    def get(self, chain: str) -> ChainRow | None:
        rows = self._rows(select(ChainRow).where(CHAINS.c.chain == chain))
        return rows[0] if rows else None

    def live(self, stream: str | None = None) -> list[ChainRow]:
        """The chains that nobody has ended, of one stream or of all."""
        return self._rows(_live() if stream is None else _live().where(CHAINS.c.stream == stream))

    # The worker's side

    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        """Begin a chain that is ready; the lease lasts `ttl` seconds from here. Raises `ChainNotClaimable`."""
        begun = {"state": ChainState.RUNNING, "owner": owner, "lease_until": now(self._session) + ttl}
        ready = _row(chain).where(CHAINS.c.state == ChainState.READY).values(fence=CHAINS.c.fence + 1, **begun)
        row = self._session.execute(ready.returning(CHAINS)).one_or_none()
        if row is None:
            raise ChainNotClaimable(f"Chain {chain} is not ready.")
        return Lease(chain, row.stream, row.slot, row.fence, row.assignment, flags_of(row))

    def heartbeat(self, chain: str, fence: int, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        """The worker is at `step`, and kept its state at `kept`; the lease lasts `ttl` seconds from here.

        What was asked for at a step that it had passed by then is asked for no more. Raises `Fenced`.
        """
        beat = _held(chain, fence).values(lease_until=now(self._session) + ttl, step=step)
        row = self._fenced(chain, beat, *WANTED)
        left = tuple(at for at in row.extra_eval_steps if at >= step or at in kept)
        if len(left) < len(row.extra_eval_steps):
            self._session.execute(_row(chain).values(extra_eval_steps=list(left)))
        return replace(flags_of(row), extra_eval_steps=left)

    def flags(self, chain: str, fence: int) -> ChainFlags:
        """What a heartbeat would say, without one. Raises `Fenced`."""
        row = self._session.execute(FLAGS, {"chain": chain, "fence": fence}).one_or_none()
        if row is None:
            raise _not_yours(chain)
        return flags_of(row)

    def advance(self, chain: str, fence: int, index: int) -> None:
        """The stage before is done, and stage `index` is now under way. Raises `Fenced`."""
        self._fenced(chain, _held(chain, fence).values(index=index), CHAINS.c.slot)

    def release(self, chain: str, fence: int, resident_model: Mapping[str, Any] | None) -> None:
        """All is trained, and saving goes on: the slot is free, with this model in memory. Raises `Fenced`."""
        saving = _held(chain, fence).values(state=ChainState.SAVING)
        self._free(chain, self._fenced(chain, saving, CHAINS.c.slot)[0], resident_model)

    def finish(self, chain: str, fence: int) -> None:
        """The whole chain is done, and its slot is free if it was not before. Raises `Fenced`."""
        done = _held(chain, fence).values(state=ChainState.DONE)
        self._free(chain, self._fenced(chain, done, CHAINS.c.slot)[0], None)

    def guard(self, chain: str, fence: int) -> None:
        """Let through only the worker whose chain this is or, when it was done to its end, was. Raises `Fenced`.

        The row stays locked until the commit, so that nobody ends the chain in between.
        """
        held = (CHAINS.c.chain == chain, CHAINS.c.fence == fence, CHAINS.c.state.in_([*HELD, ChainState.DONE]))
        if self._session.execute(select(CHAINS.c.chain).where(*held).with_for_update()).one_or_none() is None:
            raise _not_yours(chain)

    def _add(self, chain: str, column: Column[Any], steps: Iterable[int]) -> None:
        row = self._session.execute(select(column).where(CHAINS.c.chain == chain).with_for_update()).one_or_none()
        if row is not None:
            self._session.execute(_row(chain).values({column: sorted({*(row[0] or ()), *steps})}))

    def _is_expired(self, longest: float) -> ColumnElement[bool]:
        at, until = now(self._session), CHAINS.c.lease_until
        return (until < at) if longest == inf else (until < at) | (until > at + longest)

    def _end(self, chain: str, *conditions: ColumnElement[bool]) -> None:
        over = {"state": ChainState.ENDED, "fence": CHAINS.c.fence + 1}
        ended = _row(chain).where(text(LIVE), *conditions).values(**over)
        self._free(chain, self._fenced(chain, ended, CHAINS.c.slot)[0], None)

    def _fenced(self, chain: str, change: Update, *columns: ColumnElement[Any]) -> Any:
        """What `change` returns of the row it changed. Raises `Fenced` where it changed none."""
        row = self._session.execute(change.returning(*columns)).one_or_none()
        if row is None:
            raise _not_yours(chain)
        return row

    def _free(self, chain: str, slot: str, resident_model: Mapping[str, Any] | None) -> None:
        """The slot is free, unless it trains other chains together with this one: then it has one of those."""
        mine = update(SLOTS).where(SLOTS.c.name == slot, SLOTS.c.chain == chain)
        left = select(func.min(CHAINS.c.chain)).where(CHAINS.c.slot == slot, CHAINS.c.state.in_(AT_WORK))
        model = resident_model and dict(resident_model)
        self._session.execute(mine.values(chain=left.scalar_subquery(), resident_model=model))

    def _rows(self, query: Select[Any]) -> list[ChainRow]:
        return fresh_rows(self._session, query)


def has_expired(lease_until: float, at: float, longest: float = inf) -> bool:
    """Whether a chain was not claimed, or not heard of, in time.

    longest: a lease that lasts for more seconds from here is no lease: it was given before the clock went back.
    """
    return not at <= lease_until <= at + longest


def flags_of(row: Any) -> ChainFlags:
    """What a chain's row says that is wanted of it."""
    return ChainFlags(tuple(row.extra_eval_steps), row.stop, row.preempt, tuple(row.branch_steps or ()))


def _row(chain: str) -> Update:
    return update(CHAINS).where(CHAINS.c.chain == chain)


def _held(chain: str, fence: int) -> Update:
    """The chain's row, if whoever shows `fence` holds it."""
    return _row(chain).where(CHAINS.c.fence == fence, CHAINS.c.state.in_(HELD))


def _not_yours(chain: str) -> Fenced:
    return Fenced(f"Chain {chain} is over, or another worker's.")


def _live() -> Select[Any]:
    return select(ChainRow).where(text(LIVE)).order_by(CHAINS.c.chain)
