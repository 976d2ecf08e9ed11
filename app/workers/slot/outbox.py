"""Writes a slot's facts to the log, in order; nothing else in a slot appends to it.

Each fact carries proof of the right to state it, and the count of reports before it: a database that has lost one of
them refuses the next, and the chain is trained again from the facts that it has. During an outage of the database facts
wait while training continues. Only the database's answer decides whether the chain is still ours, not the time that has
passed.

Runs on: the outbox's thread; `put` on the caller's.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from app.domain import events as e
from app.events import DatabaseUnavailable, Fenced, LeaseFence, Records, RowsPort, SlotLost
from app.events.codec import Unwritable, write
from app.outages import LostRace
from app.workers.slot.claim import Claim
from app.workers.slot.retry import RetryPolicy
from app.workers.slot.worker_thread import Backlog, WorkerThread
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

CAPACITY = 1000
"""The most waiting statements; further ones block their caller."""

COALESCE_SECONDS = 0.05
"""How long a statement waits for the one that will be recorded with it."""

LOG_EVERY = 10
"""One of this many failed attempts is logged as a warning."""


class RowChange(ABC):
    """A change of rows, recorded together with facts."""

    @abstractmethod
    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        """Raises `Fenced` if the chain is over, or another worker's."""


@dataclass(frozen=True, slots=True)
class Advance(RowChange):
    """A stage was completed. index: of the next one."""

    index: int

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        rows.chains.advance(chain, fence, self.index)


@dataclass(frozen=True, slots=True)
class Release(RowChange):
    """Everything is trained: the slot is free, with the model in memory at this step of this node."""

    plan: str
    node: str
    step: int

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        rows.chains.release(chain, fence, {"plan": self.plan, "node": self.node, "step": self.step})


@dataclass(frozen=True, slots=True)
class Finish(RowChange):
    """Everything is trained and saved."""

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        rows.chains.finish(chain, fence)


@dataclass(frozen=True, slots=True)
class End(RowChange):
    """The chain ended early."""

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        rows.chains.end(chain, fence)


@dataclass(frozen=True, slots=True)
class DescribeSlot(RowChange):
    """The versions of a slot's trainers, and the reason why it waits; no effect if the slot has another owner."""

    slot: str
    owner: str
    trainers: Mapping[str, str]
    note: str | None

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        with contextlib.suppress(SlotLost):
            rows.slots.describe(self.slot, self.owner, trainers=self.trainers, note=self.note)


@dataclass(frozen=True, slots=True)
class QuarantineSlot(RowChange):
    """Quarantine the slot, or end its quarantine (`seconds` is None). No effect if the slot has another owner."""

    slot: str
    owner: str
    seconds: float | None
    reason: str | None

    def apply(self, rows: RowsPort, chain: str = "", fence: LeaseFence | None = None) -> None:
        if self.seconds is not None and _exceeds_host_limit(rows, self.slot):
            logger.warning("slot %s stays in use: half of the slots of its host are in quarantine", self.slot)
            return
        with contextlib.suppress(SlotLost):
            rows.slots.quarantine(self.slot, self.owner, seconds=self.seconds, reason=self.reason)


def _exceeds_host_limit(rows: RowsPort, slot: str) -> bool:
    """Whether one more quarantine would affect more than half of the host's slots, and more than one."""
    now, slots = rows.now(), rows.slots.all()
    host = next((row.host for row in slots if row.name == slot), "")
    same = [row for row in slots if row.host == host]
    others = [row for row in same if row.name != slot and row.is_quarantined(now)]
    return len(others) + 1 > max(1, len(same) // 2)


@dataclass(frozen=True, slots=True)
class _Statement:
    """Facts about a chain, with changes of rows. key: makes sure that they are recorded once."""

    claim: Claim
    facts: tuple[e.Event, ...]
    changes: tuple[RowChange, ...]
    key: str
    at: float
    is_last: bool
    is_news: bool
    awaits_more: bool
    on_recorded: Callable[[], None]

    def merge(self, more: _Statement) -> _Statement:
        """Both statements as one, under this one's key."""

        def on_recorded() -> None:
            self.on_recorded()
            more.on_recorded()

        is_news, facts = self.is_news or more.is_news, (*self.facts, *more.facts)
        return replace(
            more,
            key=self.key,
            facts=facts,
            changes=(*self.changes, *more.changes),
            is_news=is_news,
            on_recorded=on_recorded,
        )

    def change(self, rows: RowsPort) -> None:
        """Raises `Fenced`."""
        rows.chains.report(self.claim.chain, self.claim.fence)
        for each in self.changes:
            each.apply(rows, self.claim.chain, self.claim.fence)


class FactOutbox:
    """clock: Unix seconds. notify: wakes the scheduler, without waiting."""

    def __init__(
        self,
        records: Records,
        retry: RetryPolicy,
        *,
        clock: Callable[[], float],
        notify: Callable[[], None],
        executor: Executor = THREADS,
    ) -> None:
        self._log, self._clock, self._notify, self._retry = records.log, clock, notify, retry
        self._numbers = count(1)
        self._versions: Mapping[str, int] = {}  # replaced as a whole for other threads
        self._thread = WorkerThread("outbox", self._record, retry, CAPACITY, executor)

    def put(
        self,
        claim: Claim,
        facts: Sequence[e.Event],
        *changes: RowChange,
        is_last: bool = False,
        is_news: bool = False,
        awaits_more: bool = False,
        on_recorded: Callable[[], None] = lambda: None,
    ) -> None:
        """Record facts about a chain, after all earlier ones.

        changes: of rows, besides the count of reports that proves that the chain is ours.
        is_last: nothing more follows about this chain.
        is_news: wakes the scheduler.
        awaits_more: the next statement about the chain comes soon, and is recorded together with this one. Raises
            `Closing` if there was no room before the slot had to end.
        """
        key, is_news = f"slot:{claim.chain}:{claim.fence.owner}:{next(self._numbers)}", is_news or is_last
        at = self._clock()
        self._thread.put(_Statement(claim, tuple(facts), changes, key, at, is_last, is_news, awaits_more, on_recorded))

    def version(self, stream: str) -> int:
        """The version of this slot's last fact in a stream; 0 if there is none."""
        return self._versions.get(stream, 0)

    @property
    def is_idle(self) -> bool:
        return self._thread.is_idle

    @property
    def backlog(self) -> Backlog:
        return self._thread.backlog

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all statements put before are recorded or void, and return whether they are in time."""
        return self._thread.drain(seconds)

    def close(self) -> None:
        """Unrecorded facts are lost, and their work is done again."""
        self._thread.close()

    def _record(self, statement: _Statement) -> None:
        claim = statement.claim
        if claim.end_flag.is_set():
            return
        statement = self._coalesce(statement)
        try:
            _check_writable(statement.facts)
            self._append(statement)
        except Fenced:
            lost = "chain %s is over, another worker's, or has lost earlier reports: its last report is discarded"
            logger.warning(lost, claim.chain, extra=claim.log_fields)
            claim.end_flag.set()
            return
        except Unwritable:  # the work is assigned again, perhaps with writable facts
            unwritable = "chain %s is given up, because a fact of it cannot be written"
            logger.exception(unwritable, claim.chain, extra=claim.log_fields)
            claim.end_flag.set()
            return
        except BaseException:  # our own fault, or no time: later facts must not be recorded without this one
            claim.end_flag.set()
            raise
        if statement.is_last:
            claim.end_flag.set()
        statement.on_recorded()
        if statement.is_news:
            self._notify()

    def _coalesce(self, statement: _Statement) -> _Statement:
        """Two commits cost more than a short stage: each waits for the disk and wakes the scheduler."""
        if not statement.awaits_more:
            return statement
        more = self._thread.take_next(lambda each: each.claim is statement.claim, COALESCE_SECONDS)
        return statement if more is None else statement.merge(more)

    def _append(self, statement: _Statement) -> None:
        stream = statement.claim.stream
        for number in self._retry.attempts():
            try:
                recorded = self._log.append(
                    stream,
                    statement.facts,
                    expected=None,
                    at=statement.at,
                    key=statement.key,
                    alongside=statement.change,
                )
            except (DatabaseUnavailable, LostRace) as problem:
                level = logging.WARNING if number % LOG_EVERY == 1 else logging.DEBUG
                about = statement.claim.log_fields
                logger.log(level, "facts of chain %s wait: %s", about["chain"], problem, extra=about)
                continue
            statement.claim.fence = statement.claim.fence.reported
            self._versions = {**self._versions, stream: recorded[-1].version}
            return


def _check_writable(facts: Sequence[e.Event]) -> None:
    """Raises `Unwritable` for a fact that no database can store, before it is sent."""
    for fact in facts:
        write(fact)
