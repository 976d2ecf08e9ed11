"""The log and the rows beside it: all that this service remembers, behind one door, and the only way to write.

A writer loads, decides, and appends at the version that it decided on; where another was faster, it decides again. One
that has lost some races decides while the stream is locked, where none is faster: a busy plan starves none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app.domain.events import Event
from app.domain.search_plan import SearchPlan
from app.events.database import Database
from app.events.log import Alongside, Append, EventLog, Idempotency, SqlLog, StoredEvent, VersionConflict
from app.events.plans import Plans
from app.events.rows import Rows
from app.events.rows.ports import RowsPort
from app.outages import LostRace
from stagetree.backoff import Backoff

Result = TypeVar("Result")
ATTEMPTS = 10
ROW_RACES = Backoff(0.01, 2.0, spread=1.0)
"""How long to stay out of the way of whoever was faster."""


class Records(Protocol):
    """Safe to share between threads. Both transactions raise `DatabaseUnavailable`, and that of `write` `LostRace`."""

    @property
    def log(self) -> EventLog: ...

    def read(self) -> AbstractContextManager[RowsPort]:
        """A transaction that changes nothing."""

    def write(self) -> AbstractContextManager[RowsPort]:
        """A transaction that commits at the end of the block, and leaves nothing behind when the block raises."""

    def close(self) -> None:
        """Close the connections that are not in use."""


class SqlRecords:
    """In a database."""

    def __init__(self, database: Database) -> None:
        self.database, self.log = database, SqlLog(database)

    @contextmanager
    def read(self) -> Iterator[Rows]:
        with self.database.read() as session:
            yield Rows(session)

    @contextmanager
    def write(self) -> Iterator[Rows]:
        with self.database.write() as session:
            yield Rows(session)

    def close(self) -> None:
        self.database.dispose()


def change(records: Records, do: Callable[[RowsPort], Result]) -> Result:
    """What `do` returns, from a short transaction of its own that is done again when another was faster.

    Raises `DatabaseUnavailable`, and `LostRace` when others were faster all the time.
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
"""So many attempts are made before the stream is locked for one."""

RACES = Backoff(0.003, 0.3, spread=0.7)
"""How long a writer that has lost a race stays out of the way of the others."""


class Moved(VersionConflict):
    """Raised by a `decide`: the plan is not what it was when the decision was prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What must be written to a stream: whatever `decide` makes of its plan, and `alongside` in one transaction.

    `decide` is pure: it runs again when another writer was faster. What takes long and must not be done while others
    wait for the plan belongs into `prepare`, which runs before each attempt.
    is_known: the plan was read a moment ago. The first attempt goes by that; the next one reads what came meanwhile.
    by: the principal who asked for it.
    """

    stream: str
    decide: Decide
    at: float
    idempotency: Idempotency | None = None
    alongside: Alongside | None = None
    prepare: Callable[[], None] | None = None
    is_known: bool = False
    by: str | None = None


def transact(
    log: EventLog,
    plans: Plans,
    write: Write,
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> list[StoredEvent]:
    """Write, and return what was recorded. What `decide` or `alongside` raises comes through: nothing was written then.

    With an idempotency key that was used before, `decide` is not asked, and what was recorded then is returned.
    Raises `VersionConflict` after so many lost races, `KeyReused`, `PlanUnusable`, `DatabaseUnavailable`.
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
        return _locked(log, plans, write) if locked else _optimistic(log, plans, write, fresh)


def _optimistic(log: EventLog, plans: Plans, write: Write, fresh: bool) -> list[StoredEvent]:
    """Decide on the plan as it is known, and append if it still is so then; nobody waits for the disk to read it."""
    with plans.holding(write.stream, fresh=fresh) as plan:
        events, version = write.decide(plan), plan.version
    if not events and write.alongside is None and write.idempotency is None:
        return []
    recorded = log.write(_append(write, events=events, expected=version))
    plans.add(write.stream, recorded)
    return recorded


def _locked(log: EventLog, plans: Plans, write: Write) -> list[StoredEvent]:
    """Lock the stream, take in what came meanwhile, decide and append."""
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

    Raises `VersionConflict` when the transaction lost against another (nothing was written), and `DatabaseUnavailable`.
    """
    return log.append(stream, events, expected=None, at=at, alongside=alongside)
