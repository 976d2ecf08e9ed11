"""The folded plans of streams, in memory. A plan is folded on demand, and evicted when it is idle.

A plan whose log has lost events is dropped with all others, see `app.events.lost_commits`. See `app.events.past` for
plans at an earlier version.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from threading import Lock, RLock

from app.domain.evolve import collector_paused, evolve, struck_studies
from app.domain.search_plan import SearchPlan
from app.events.codec import UnknownEvent
from app.events.log import EventLog, Gap, StoredEvent
from app.events.lost_commits import LostCommits, read_after

logger = logging.getLogger(__name__)

BATCH = 2_000
"""Events that are in memory at once while a plan is folded."""

IDLE_SECONDS = 600.0
"""A plan that was not used for this long is evicted."""

MAX_IDLE = 16
"""How many plans without a running study stay in memory."""

MAX_IDLE_EVENTS = 50_000
"""The most events of these plans, without the newest plan: each takes a kilobyte or two."""

TRY_AGAIN_SECONDS = 60.0
"""A plan that could not be folded is retried after this time, or when its stream has moved."""


class PlanUnusable(Exception):
    """This version cannot read or fold the events of a plan. The message names the plan and the reason."""


@dataclass(slots=True)
class _Entry:
    """A plan in memory.

    lock: held while the plan is read or folded. writing: held from the decision to the append, so that writers of one
    process wait for each other instead of losing races; readers do not need it. last: the event folded last. broken:
    the version at which folding failed, and when.
    """

    plan: SearchPlan
    used_at: float
    last: StoredEvent | None = None
    lock: RLock = field(default_factory=RLock)
    writing: RLock = field(default_factory=RLock)
    problem: PlanUnusable | None = None
    broken: tuple[int, float] = (-1, 0.0)


class Plans:
    """The plans in use, brought up to date from the log at each access. Thread-safe.

    on_fold: called with the events that were folded into a stream's plan, in order, while the plan is locked. A caller
    that derives something else from the events need not read them again. It may see events twice, and must not ask for
    a plan. on_loss: called after all plans were dropped because the log has lost events.
    losses: how often that was so.

    Do not ask for a plan inside a write transaction: the holder of the plan may be waiting for that transaction to end.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        idle_seconds: float = IDLE_SECONDS,
        max_idle: int = MAX_IDLE,
        max_idle_events: int = MAX_IDLE_EVENTS,
        clock: Callable[[], float] = time.monotonic,
        on_fold: Callable[[str, Sequence[StoredEvent]], None] = lambda stream, recorded: None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._log, self._clock, self._on_fold, self._on_loss = log, clock, on_fold, on_loss
        self._idle_seconds, self._max_idle, self._max_idle_events = idle_seconds, max_idle, max_idle_events
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._lock = Lock()
        self._swept_at = clock()
        self._newest: StoredEvent | None = None  # of all events that were folded
        self.losses = 0

    def get(self, stream: str) -> SearchPlan:
        """The plan as of now. Other threads may fold later events into it: use `holding` to read more than one thing
        from it.

        Raises `PlanUnusable`, `DatabaseUnavailable`, `LostCommits`.
        """
        with self.holding(stream) as plan:
            return plan

    def holding(self, stream: str, *, fresh: bool = True) -> AbstractContextManager[SearchPlan]:
        """The plan, locked for the block. Raises as `get` does. fresh: read new events first; else it costs nothing."""
        return _Holding(self, stream, fresh)

    def writing(self, stream: str) -> AbstractContextManager[bool]:
        """Within the block, no other thread of this process decides about the stream."""
        return self._entry(stream).writing

    def _hold(self, stream: str, fresh: bool) -> _Entry:
        """The entry of a stream, locked."""
        entry = self._entry(stream)
        entry.lock.acquire()
        try:
            if fresh or entry.problem is not None or entry.plan.version == 0:
                self._catch_up(stream, entry)
        except BaseException:
            entry.lock.release()
            raise
        return entry

    def fold(self, stream: str, recorded: Sequence[StoredEvent]) -> None:
        """Fold events, if the plan is at the version before them. Raises `PlanUnusable`."""
        entry = self._entry(stream)
        with entry.lock:
            if recorded and entry.problem is None and entry.plan.version == recorded[0].version - 1:
                self._fold(stream, entry, recorded)

    def add(self, stream: str, recorded: Sequence[StoredEvent]) -> None:
        """As `fold`, for events that this process appended: problems are reported to the next reader of the plan."""
        with suppress(PlanUnusable):
            self.fold(stream, recorded)

    def keep(self, streams: Iterable[str]) -> None:
        """Mark plans as used, so that they are not evicted."""
        at = self._clock()
        with self._lock:
            for stream in streams:
                if stream in self._entries:
                    self._entries[stream].used_at = at
                    self._entries.move_to_end(stream)

    def check_log(self) -> None:
        """Raise `LostCommits` if the newest event in memory is not in the log any more."""
        newest = self._newest
        if newest is not None:
            self._read_after(newest.stream, newest, limit=0)

    def names(self) -> list[str]:
        """The streams whose plans are in memory."""
        with self._lock:
            return list(self._entries)

    def _entry(self, stream: str) -> _Entry:
        at = self._clock()
        with self._lock:
            if stream not in self._entries or at - self._swept_at > self._idle_seconds / 10:
                self._evict(at, stream)
            if stream not in self._entries:
                self._entries[stream] = _Entry(SearchPlan(), at)
            entry = self._entries[stream]
            entry.used_at = at
            self._entries.move_to_end(stream)
            return entry

    def _evict(self, at: float, newest: str) -> None:
        """Evict the plans that were not used for long, and the least recently used idle ones beyond the limits.

        newest: the stream whose plan is used next. It is evicted only for its age. A process that only writes to a plan
        never learns that its studies are over, so age counts as well.
        """
        self._swept_at, idle, idle_events = at, 0, 0
        for stream, entry in reversed(list(self._entries.items())):
            is_old, is_idle = at - entry.used_at > self._idle_seconds, not _is_running(entry) and stream != newest
            if is_idle:
                idle, idle_events = idle + 1, idle_events + entry.plan.version
            is_too_many = is_idle and (idle >= self._max_idle or idle_events > self._max_idle_events)
            if (is_old or is_too_many) and _is_unused(entry):
                del self._entries[stream]

    def _catch_up(self, stream: str, entry: _Entry) -> None:
        self._raise_known_problem(stream, entry)
        with collector_paused():
            if entry.plan.version == 0:
                entry.plan.struck = self._log.struck_studies(stream)  # before its first event
            while batch := self._read(stream, entry):
                self._fold(stream, entry, batch)
                if len(batch) < BATCH and entry.plan.version:
                    break

    def _raise_known_problem(self, stream: str, entry: _Entry) -> None:
        """Folding would fail again until the log moves or the program is replaced."""
        if entry.problem is None:
            return
        version, found_at = entry.broken
        if self._clock() - found_at < TRY_AGAIN_SECONDS and self._log.version(stream) == version:
            raise entry.problem
        entry.problem = None

    def _read(self, stream: str, entry: _Entry) -> list[StoredEvent]:
        try:
            return self._read_after(stream, entry.last, BATCH)
        except (UnknownEvent, Gap) as error:
            raise self._mark_broken(stream, entry, error) from error

    def _fold(self, stream: str, entry: _Entry, recorded: Sequence[StoredEvent]) -> None:
        """Fold into the plan in place. A plan that fails halfway or contains a newly struck study is dropped, to be
        folded anew.
        """
        plan, is_whole = entry.plan, False
        if not struck_studies(each.event for each in recorded) <= plan.struck:
            entry.plan, entry.last = SearchPlan(struck=self._log.struck_studies(stream)), None
            return
        try:
            for each in recorded:
                evolve(plan, each.event)
                plan.version = each.version
            is_whole, entry.last = True, recorded[-1]
        except Exception as error:  # only this plan is unusable
            raise self._mark_broken(stream, entry, error) from error
        finally:
            if not is_whole:
                entry.plan, entry.last = SearchPlan(), None
        if self._newest is None or self._newest.position < recorded[-1].position:
            self._newest = recorded[-1]
        self._on_fold(stream, recorded)

    def _read_after(self, stream: str, last: StoredEvent | None, limit: int) -> list[StoredEvent]:
        """As `read_after`; a loss drops all plans."""
        try:
            return read_after(self._log, stream, last, limit)
        except LostCommits as lost:
            logger.error("%s", lost)
            with self._lock:
                self._entries.clear()
                self._newest, self.losses = None, self.losses + 1
            self._on_loss()
            raise

    def _mark_broken(self, stream: str, entry: _Entry, error: Exception) -> PlanUnusable:
        problem = str(error) if isinstance(error, UnknownEvent | Gap) else f"{type(error).__name__}: {error}"
        entry.problem = PlanUnusable(f"plan {stream} cannot be used: {problem}")
        entry.broken = (self._log.version(stream), self._clock())
        return entry.problem


class _Holding(AbstractContextManager[SearchPlan]):
    """The block of `Plans.holding`. A tick enters dozens: a generator would cost as much as what most of them do."""

    __slots__ = ("_entry", "_fresh", "_plans", "_stream")

    def __init__(self, plans: Plans, stream: str, fresh: bool) -> None:
        self._plans, self._stream, self._fresh = plans, stream, fresh

    def __enter__(self) -> SearchPlan:
        self._entry = self._plans._hold(self._stream, self._fresh)
        return self._entry.plan

    def __exit__(self, *error: object) -> None:
        self._entry.lock.release()


def _is_running(entry: _Entry) -> bool:
    """Whether a study was running when the plan was read last."""
    return any(study.is_running for study in list(entry.plan.studies.values()))


def _is_unused(entry: _Entry) -> bool:
    """Whether no thread holds the plan."""
    for lock in (entry.lock, entry.writing):
        if not lock.acquire(blocking=False):
            return False
        lock.release()
    return True
