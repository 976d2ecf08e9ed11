"""The log and the rows together, and the functions that write them.

A writer loads a plan, decides, and appends at the version that it decided on. If another writer was faster, it decides
again. After some lost races it decides while the stream is locked, so that a busy plan starves no writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app.domain.events import Event
from app.domain.search_plan import SearchPlan
from app.events.log import Alongside, Append, EventLog, Idempotency, StoredEvent, VersionConflict
from app.events.plans import Plans
from app.events.rows import RowsPort
from app.outages import LostRace
from stagetree.backoff import Backoff

Result = TypeVar("Result")
ATTEMPTS = 10
ROW_RACES = Backoff(0.01, 2.0, spread=1.0)
"""The pauses after lost races."""


class Records(Protocol):
    """Thread-safe. Both transactions raise `DatabaseUnavailable`, and `write` raises `LostRace`."""

    @property
    def log(self) -> EventLog: ...

    def read(self) -> AbstractContextManager[RowsPort]:
        """A read-only transaction."""

    def write(self) -> AbstractContextManager[RowsPort]:
        """A transaction that commits at the end of the block, and rolls back if the block raises."""

    def close(self) -> None:
        """Close all idle connections."""


def change(records: Records, do: Callable[[RowsPort], Result]) -> Result:
    """Call `do` in a short transaction, which is retried if it loses a race.

    Raises `DatabaseUnavailable`, and `LostRace` if all attempts lost.
    """
    for attempt in ROW_RACES.attempts(ATTEMPTS):
        try:
            with records.write() as rows:
                return do(rows)
        except LostRace:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


Decide = Callable[[SearchPlan], Sequence[Event]]


OPTIMISTIC = 3
"""How many attempts are made before one locks the stream."""

RACES = Backoff(0.003, 0.3, spread=0.7)
"""The pauses of a writer that lost a race."""


class Moved(VersionConflict):
    """Raised by `decide` if the plan has changed since the decision was prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write to a stream: the events that `decide` derives from its plan, and `alongside` in the same transaction."""

    stream: str
    decide: Decide
    """Pure: it runs again after each lost race."""
    at: float
    idempotency: Idempotency | None = None
    alongside: Alongside | None = None
    prepare: Callable[[], None] | None = None
    """Slow work that must not lock the plan. It runs before each attempt."""
    is_known: bool = False
    """The plan was read a moment ago: the first attempt does not read the log again."""
    by: str | None = None


def transact(
    log: EventLog,
    plans: Plans,
    write: Write,
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> list[StoredEvent]:
    """Write, and return the recorded events. An exception of `decide` or `alongside` means that nothing was written.

    With an idempotency key that was used before, `decide` is not called, and the earlier events are returned.
    Raises `VersionConflict` after `attempts` lost races, `KeyReused`, `PlanUnusable`, `DatabaseUnavailable`.
    """
    for attempt in RACES.attempts(attempts, pause):
        once = write.idempotency
        if once is not None and (recorded := log.find_by_key(once.key, once.fingerprint)) is not None:
            return recorded
        try:
            fresh = attempt > 1 or not write.is_known
            return _attempt(log, plans, write, locked=attempt > OPTIMISTIC, fresh=fresh)
        except VersionConflict:
            if attempt == attempts:
                raise
    raise ValueError("A transaction needs at least one attempt.")


def _attempt(log: EventLog, plans: Plans, write: Write, *, locked: bool, fresh: bool) -> list[StoredEvent]:
    if write.prepare is not None:
        write.prepare()
    with plans.writing(write.stream):
        return _write_locked(log, plans, write) if locked else _write_optimistic(log, plans, write, fresh)


def _write_optimistic(log: EventLog, plans: Plans, write: Write, fresh: bool) -> list[StoredEvent]:
    """Decide on the plan in memory, and append if it has not changed by then: no lock is held while the log is read."""
    with plans.holding(write.stream, fresh=fresh) as plan:
        events, version = write.decide(plan), plan.version
    if not events and write.alongside is None and write.idempotency is None:
        return []
    recorded = log.write(_append(write, events=events, expected=version))
    plans.add(write.stream, recorded)
    return recorded


def _write_locked(log: EventLog, plans: Plans, write: Write) -> list[StoredEvent]:
    """Lock the stream, fold later events, decide and append."""
    with plans.holding(write.stream) as plan:

        def decide(news: Sequence[StoredEvent]) -> Sequence[Event]:
            plans.fold(write.stream, news)
            return write.decide(plan)

        recorded = log.write(_append(write, decide=decide, expected=plan.version))
        plans.add(write.stream, recorded)
        return recorded


def _append(write: Write, **fields: Any) -> Append:
    once, alongside = write.idempotency, write.alongside
    return Append(stream=write.stream, at=write.at, by=write.by, idempotency=once, alongside=alongside, **fields)


def record(
    log: EventLog, stream: str, events: Sequence[Event], *, at: float, alongside: Alongside
) -> list[StoredEvent]:
    """Append facts that need no decision: `alongside` proves the right to state them, with a fence, or raises.

    Raises `VersionConflict` if the transaction lost against another one (nothing was written), and
    `DatabaseUnavailable`.
    """
    return log.append(stream, events, expected=None, at=at, alongside=alongside)
