"""Runs on: the outbox's thread, but for `put`, which whoever has a fact calls.

The facts of a slot on their way to the log: the only place from which it appends.

They go one after the other, each with the proof of the right to state it. While the database is away they wait, and the
training goes on; what decides is the database's answer, not the time that has passed here.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from app.domain import events as e
from app.events import DatabaseUnavailable, Fenced, Records, RowsPort, SlotLost
from app.events.codec import Unwritable, write
from app.outages import LostRace
from app.workers.slot.claim import Claim
from app.workers.slot.retry import RetryPolicy, WorkerThread
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

CAPACITY = 1000
"""So many statements may wait; an execution that has one more waits, too."""

COALESCE_SECONDS = 0.05
"""Seconds that a statement which awaits more is held back at most."""

LOG_EVERY = 10
"""Of so many tries without success, one leaves a line."""


class RowChange(ABC):
    """What goes on record in the rows together with facts, and proves that the slot may state them."""

    @abstractmethod
    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        """Raises `Fenced` where the chain is over, or another worker's."""


@dataclass(frozen=True, slots=True)
class Guard(RowChange):
    """Nothing changes; the chain must be ours."""

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        rows.chains.guard(chain, fence)


@dataclass(frozen=True, slots=True)
class Advance(RowChange):
    """A stage was completed. index: of the next one."""

    index: int

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        rows.chains.advance(chain, fence, self.index)


@dataclass(frozen=True, slots=True)
class Release(RowChange):
    """All is trained: the slot is free, with the model in memory at this step of this node."""

    plan: str
    node: str
    step: int

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        rows.chains.release(chain, fence, {"plan": self.plan, "node": self.node, "step": self.step})


@dataclass(frozen=True, slots=True)
class Finish(RowChange):
    """All is trained and saved."""

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        rows.chains.finish(chain, fence)


@dataclass(frozen=True, slots=True)
class End(RowChange):
    """The chain has ended before its end."""

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        rows.chains.end(chain, fence)


@dataclass(frozen=True, slots=True)
class DescribeSlot(RowChange):
    """The versions of a slot's trainers, and what it waits for; nothing if the slot is not its owner's any more."""

    slot: str
    owner: str
    trainers: Mapping[str, str]
    note: str | None

    def apply(self, rows: RowsPort, chain: str, fence: int) -> None:
        with contextlib.suppress(SlotLost):
            rows.slots.describe(self.slot, self.owner, trainers=self.trainers, note=self.note)


@dataclass(frozen=True, slots=True)
class QuarantineSlot(RowChange):
    """The slot is given nothing for so many seconds; None: it is well again. As `DescribeSlot` about its owner."""

    slot: str
    owner: str
    seconds: float | None
    reason: str | None

    def apply(self, rows: RowsPort, chain: str = "", fence: int = 0) -> None:
        if self.seconds is not None and _exceeds_host_limit(rows, self.slot):
            logger.warning("slot %s goes on: half of the slots of its host are in quarantine", self.slot)
            return
        with contextlib.suppress(SlotLost):
            rows.slots.quarantine(self.slot, self.owner, seconds=self.seconds, reason=self.reason)


def _exceeds_host_limit(rows: RowsPort, slot: str) -> bool:
    """Whether one slot more in quarantine would be more than half of its host's slots, or more than one."""
    now, slots = rows.now(), rows.slots.all()
    host = next((row.host for row in slots if row.name == slot), "")
    same = [row for row in slots if row.host == host]
    others = [row for row in same if row.name != slot and row.is_quarantined(now)]
    return len(others) + 1 > max(1, len(same) // 2)


@dataclass(frozen=True, slots=True)
class _Statement:
    """Facts about a chain, with what changes in the rows. key: makes sure that they are recorded once."""

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
        """Both as one, under the key of this one."""

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
        for each in self.changes:
            each.apply(rows, self.claim.chain, self.claim.fence)


class FactOutbox:
    """clock: Unix seconds. notify: tells the scheduler that something happened; it must not wait."""

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
        self._versions: Mapping[str, int] = {}  # put in place whole: others read it
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
        """State facts about a chain, after all that was stated before.

        changes: by default the chain must just be ours. is_last: nothing more follows about this chain. is_news: the
        scheduler is told. awaits_more: what follows about the chain is about to come, and goes on record together with
        this. Raises `Closing` if there was no room for it before the slot had to end.
        """
        key, is_news = f"slot:{claim.chain}:{claim.fence}:{next(self._numbers)}", is_news or is_last
        changes, at = changes or (Guard(),), self._clock()
        self._thread.put(_Statement(claim, tuple(facts), changes, key, at, is_last, is_news, awaits_more, on_recorded))

    def version(self, stream: str) -> int:
        """That of the last fact of this slot in a stream; 0 if there was none."""
        return self._versions.get(stream, 0)

    @property
    def is_idle(self) -> bool:
        return self._thread.is_idle

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until everything stated so far is on record or void, or for so many seconds; whether it is."""
        return self._thread.drain(seconds)

    def close(self) -> None:
        """What is not on record now is lost: its work will be done again."""
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
            lost = "chain %s is over, or another worker's: what was stated last is void"
            logger.warning(lost, claim.chain, extra=claim.log_fields)
            claim.end_flag.set()
            return
        except Unwritable:  # the work will come again, and with it perhaps a fact that can be written
            unwritable = "chain %s is given up, because a fact of it cannot be written"
            logger.exception(unwritable, claim.chain, extra=claim.log_fields)
            claim.end_flag.set()
            return
        except (
            BaseException
        ):  # a mistake of ours, or there is no more time: what follows this fact must not stand in the log without it
            claim.end_flag.set()
            raise
        if statement.is_last:
            claim.end_flag.set()
        statement.on_recorded()
        if statement.is_news:
            self._notify()

    def _coalesce(self, statement: _Statement) -> _Statement:
        """Each commit is a wait for the disk, and wakes the scheduler: two of them cost more than a short stage."""
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
            self._versions = {**self._versions, stream: recorded[-1].version}
            return


def _check_writable(facts: Sequence[e.Event]) -> None:
    """Raises `Unwritable` for a fact that no database would take, before any is asked."""
    for fact in facts:
        write(fact)
