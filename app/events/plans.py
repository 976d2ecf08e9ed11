"""The folded plan of each stream, in memory: folded when it is asked for, let go when nobody needs it.

See `app.events.past` for plans as they were at an earlier moment.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, RLock

from app.domain.evolve import collector_paused, evolve, strikes
from app.domain.search_plan import SearchPlan
from app.events.codec import UnknownEvent
from app.events.log import EventLog, Gap, StoredEvent

BATCH = 10_000

IDLE_SECONDS = 600.0
"""A plan that nobody looked at for so long is let go."""

MOST_IDLE = 16
"""The most plans without a running study that stay in memory."""

TRY_AGAIN_SECONDS = 60.0
"""A plan that could not be folded is not folded again any sooner, unless its stream has moved."""


class PlanUnusable(Exception):
    """The events of one plan cannot be read or folded by this version; the message says which plan and why."""


@dataclass(slots=True)
class _Entry:
    """A plan in memory.

    lock: held by whoever reads or folds the plan. writing: held by the one who decides and appends, over the append,
    so that writers of one process wait for each other instead of losing races; readers do not wait for it.
    broken: at which version the plan could not be folded, and when that was found.
    """

    plan: SearchPlan
    used_at: float
    lock: RLock = field(default_factory=RLock)
    writing: RLock = field(default_factory=RLock)
    problem: PlanUnusable | None = None
    broken: tuple[int, float] = (-1, 0.0)


class Plans:
    """The plans that were asked for, brought up to date from the log each time. Safe to share between threads.

    on_fold: is given what was folded of a stream, in order, while nobody else touches its plan: who makes something
    else of the same events need not read them again. It may hear of the same events twice, and must not ask for a plan.

    Do not ask for a plan inside a write transaction: whoever holds the plan may be waiting for that transaction to end.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        idle_seconds: float = IDLE_SECONDS,
        most_idle: int = MOST_IDLE,
        clock: Callable[[], float] = time.monotonic,
        on_fold: Callable[[str, Sequence[StoredEvent]], None] = lambda stream, recorded: None,
    ) -> None:
        self._log, self._clock, self._on_fold = log, clock, on_fold
        self._idle_seconds, self._most_idle = idle_seconds, most_idle
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the one used last is last
        self._lock = Lock()
        self._swept_at = clock()

    def get(self, stream: str) -> SearchPlan:
        """The plan as of now. Other threads go on folding it: to look at more than one thing in it, use `holding`.

        Raises `PlanUnusable`, `DatabaseUnavailable`.
        """
        with self.holding(stream) as plan:
            return plan

    @contextmanager
    def holding(self, stream: str, *, fresh: bool = True) -> Iterator[SearchPlan]:
        """The plan as of now, and nobody else touches it within the block. Raises as `get` does.

        Not `fresh`: as it was when it was read last, which costs nothing.
        """
        entry = self._entry(stream)
        with entry.lock:
            if fresh or entry.problem is not None or entry.plan.version == 0:
                self._catch_up(stream, entry)
            yield entry.plan

    @contextmanager
    def writing(self, stream: str) -> Iterator[None]:
        """Nobody else in this process decides about the stream within the block."""
        with self._entry(stream).writing:
            yield

    def fold(self, stream: str, recorded: Sequence[StoredEvent]) -> None:
        """Fold what was recorded, if the plan is at the version before it. Raises `PlanUnusable`."""
        entry = self._entry(stream)
        with entry.lock:
            if recorded and entry.problem is None and entry.plan.version == recorded[0].version - 1:
                self._fold(stream, entry, recorded)

    def add(self, stream: str, recorded: Sequence[StoredEvent]) -> None:
        """As `fold`, for what this process has appended: it stands; the next reader of the plan hears of problems."""
        with suppress(PlanUnusable):
            self.fold(stream, recorded)

    def keep(self, streams: Iterable[str]) -> None:
        """Somebody has these plans in use, though nothing happens to them: they are not let go for being idle."""
        at = self._clock()
        with self._lock:
            for stream in streams:
                if stream in self._entries:
                    self._entries[stream].used_at = at
                    self._entries.move_to_end(stream)

    def names(self) -> list[str]:
        """The streams whose plans are in memory."""
        with self._lock:
            return list(self._entries)

    def _entry(self, stream: str) -> _Entry:
        at = self._clock()
        with self._lock:
            if stream not in self._entries or at - self._swept_at > self._idle_seconds / 10:
                self._let_go(at)  # perhaps of this one, too, if nobody asked for a long time
            if stream not in self._entries:
                self._entries[stream] = _Entry(SearchPlan(), at)
            entry = self._entries[stream]
            entry.used_at = at
            self._entries.move_to_end(stream)
            return entry

    def _let_go(self, at: float) -> None:
        """Of the plans that are idle, keep those that were used last; of those that nobody looks at for long, none.

        Whoever only wrote to a plan never hears that its studies are over.
        """
        self._swept_at, idle = at, 0
        for stream, entry in reversed(list(self._entries.items())):
            is_old, is_idle = at - entry.used_at > self._idle_seconds, not _is_running(entry)
            idle += is_idle
            if (is_old or (is_idle and idle >= self._most_idle)) and _is_unused(entry):
                del self._entries[stream]

    def _catch_up(self, stream: str, entry: _Entry) -> None:
        self._raise_known_problem(stream, entry)
        with collector_paused():
            if entry.plan.version == 0:
                entry.plan.struck = self._log.struck(stream)  # before its first event
            while batch := self._read(stream, entry):
                self._fold(stream, entry, batch)
                if len(batch) < BATCH and entry.plan.version:
                    break

    def _raise_known_problem(self, stream: str, entry: _Entry) -> None:
        """What broke the plan will break it again, until the log or this program is another."""
        if entry.problem is None:
            return
        version, found_at = entry.broken
        if self._clock() - found_at < TRY_AGAIN_SECONDS and self._log.version(stream) == version:
            raise entry.problem
        entry.problem = None

    def _empty(self, stream: str) -> SearchPlan:
        """The plan before its first event; what was struck is known beforehand."""
        return SearchPlan(struck=self._log.struck(stream))

    def _read(self, stream: str, entry: _Entry) -> list[StoredEvent]:
        try:
            return self._log.read(stream, after=entry.plan.version, limit=BATCH)
        except (UnknownEvent, Gap) as error:
            raise self._broken(stream, entry, error) from error

    def _fold(self, stream: str, entry: _Entry, recorded: Sequence[StoredEvent]) -> None:
        """Into the plan in place. A plan that broke half-way, or lost a study, is dropped, to be folded anew."""
        plan, is_whole = entry.plan, False
        if not strikes(each.event for each in recorded) <= plan.struck:
            entry.plan = self._empty(stream)
            return
        try:
            for each in recorded:
                evolve(plan, each.event)
                plan.version = each.version
            is_whole = True
        except Exception as error:  # it is only folded: nothing is lost, and the others' plans are none the worse
            raise self._broken(stream, entry, error) from error
        finally:
            if not is_whole:
                entry.plan = SearchPlan()
        self._on_fold(stream, recorded)

    def _broken(self, stream: str, entry: _Entry, error: Exception) -> PlanUnusable:
        problem = str(error) if isinstance(error, UnknownEvent | Gap) else f"{type(error).__name__}: {error}"
        entry.problem = PlanUnusable(f"plan {stream} cannot be used: {problem}")
        entry.broken = (self._log.version(stream), self._clock())
        return entry.problem


def _is_running(entry: _Entry) -> bool:
    """Whether a study was running when the plan was read last."""
    return any(study.is_running for study in list(entry.plan.studies.values()))


def _is_unused(entry: _Entry) -> bool:
    """Whether nobody is at it just now."""
    for lock in (entry.lock, entry.writing):
        if not lock.acquire(blocking=False):
            return False
        lock.release()
    return True
