"""The only way to write: load, decide, append at the version decided on; where another was faster, decide again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, RLock

from app.domain.events import Event
from app.domain.evolve import collector_paused, evolve, strikes
from app.domain.search_plan import SearchPlan
from app.events.log import Alongside, Conflict, EventLog, Recorded

Decide = Callable[[SearchPlan], Sequence[Event]]

BATCH = 10_000


@dataclass(slots=True)
class _Held:
    """A plan in memory, with the lock that whoever reads or folds it must hold."""

    plan: SearchPlan | None = None
    lock: RLock = field(default_factory=RLock)


class Plans:
    """The folded plan of each stream, kept in memory and brought up to date from the log when it is asked for.

    Do not ask for a plan inside a write transaction: whoever holds the plan may be waiting for that transaction to end.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._held: dict[str, _Held] = {}
        self._lock = Lock()

    def get(self, stream: str) -> SearchPlan:
        """The plan as of now. Other threads go on folding it: to look at more than one thing in it, use `holding`."""
        with self.holding(stream) as plan:
            return plan

    @contextmanager
    def holding(self, stream: str) -> Iterator[SearchPlan]:
        """The plan as of now, and nobody else touches it within the block."""
        with self._lock:
            held = self._held.setdefault(stream, _Held())
        with held.lock:
            yield self._catch_up(stream, held)

    def add(self, recorded: Sequence[Recorded]) -> None:
        """Fold what was just appended to a stream, if the plan is at the version before it; else it is read later."""
        held = self._held[recorded[0].stream]
        with held.lock:
            if held.plan is not None and held.plan.version == recorded[0].version - 1:
                _fold(held, recorded)

    def _catch_up(self, stream: str, held: _Held) -> SearchPlan:
        with collector_paused():
            if held.plan is None:
                held.plan = SearchPlan(struck=self._log.struck(stream))
            while batch := self._log.read(stream, after=held.plan.version, limit=BATCH):
                _fold(held, batch)
                if held.plan is None:  # a study was struck: begin anew, without it
                    held.plan = SearchPlan(struck=self._log.struck(stream))
                elif len(batch) < BATCH:
                    break
        return held.plan


def _fold(held: _Held, recorded: Sequence[Recorded]) -> None:
    """Into the plan in place. A plan that broke half-way, or lost a study, is dropped, to be folded anew."""
    plan, held.plan = held.plan, None
    if plan is None or not strikes(each.event for each in recorded) <= plan.struck:
        return
    for each in recorded:
        evolve(plan, each.event)
        plan.version = each.version
    held.plan = plan


def transact(
    log: EventLog,
    plans: Plans,
    stream: str,
    decide: Decide,
    *,
    at: float,
    key: str | None = None,
    fingerprint: str = "",
    alongside: Alongside | None = None,
    attempts: int = 10,
) -> list[Recorded]:
    """Append what `decide` makes of the plan, and `alongside` in the same transaction; return what was recorded.

    `decide` is pure: it runs again when another writer was faster, up to `attempts` times in all. What it or
    `alongside` raises comes through, and nothing was written. With a `key` that was used before, `decide` is not asked
    and what was recorded then is returned. Raises `Conflict`, `KeyReused`, `DatabaseUnavailable`.
    """
    for attempt in range(1, attempts + 1):
        if key is not None and (known := log.recall(key, fingerprint)) is not None:
            return known
        try:
            return _attempt(log, plans, stream, decide, at, key, fingerprint, alongside)
        except Conflict:
            if attempt == attempts:
                raise
    raise ValueError("A transaction needs at least one attempt.")


def _attempt(
    log: EventLog,
    plans: Plans,
    stream: str,
    decide: Decide,
    at: float,
    key: str | None,
    fingerprint: str,
    alongside: Alongside | None,
) -> list[Recorded]:
    with plans.holding(stream) as plan:
        events = decide(plan)
        if not events and alongside is None and key is None:
            return []
        optional = {"key": key, "fingerprint": fingerprint, "alongside": alongside}
        recorded = log.append(stream, events, expected=plan.version, at=at, **optional)
        if recorded:
            plans.add(recorded)
        return recorded


def record(log: EventLog, stream: str, events: Sequence[Event], *, at: float, alongside: Alongside) -> list[Recorded]:
    """Append facts that need no decision: `alongside` proves the right to state them, with a fence, or raises.

    Raises `Conflict` when the transaction lost against another (nothing was written), and `DatabaseUnavailable`.
    """
    return log.append(stream, events, expected=None, at=at, alongside=alongside)
