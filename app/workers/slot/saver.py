"""Uploads checkpoints in order, while the next stage trains.

An outage of the store is waited for while the process lives and the chain is ours: no fact is dropped. Facts that must
follow a checkpoint, such as the chain's end, pass through here too. Waiting states take memory, so training waits when
the host's slots have too many bytes to upload.

Runs on: the saver's thread; `save`, `submit` and `delete` on the thread that trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.storage.object_store import StoreUnavailable
from app.workers.slot.checkpoint_store import SMALL, CheckpointStore, Stored
from app.workers.slot.claim import Claim
from app.workers.slot.host_backlog import HostBacklog
from app.workers.slot.retry import Clock, RetryPolicy
from app.workers.slot.slot_status import SlotStatus
from app.workers.slot.worker_thread import LOOK_SECONDS, Backlog, WorkerThread
from app.workers.state import State
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

BACKLOG = 4
"""States that may wait in memory; further ones block."""

SAVE_SECONDS = 0.05
"""The assumed cost of keeping a state before one of its plan was kept, and the most that an upload counts."""

FIRST_COSTS = (SAVE_SECONDS,) * 3

TRIES_BEFORE_NOTE = 4
"""After this many failed attempts, the slot's row says that it waits."""


@dataclass(frozen=True, slots=True)
class _Job:
    """drop: called instead if the chain is over."""

    claim: Claim
    do: Callable[[], None]
    drop: Callable[[], None] = lambda: None


class Saver:
    """clock: measures uploads. backlog: of the host; None: no limit. cached_bytes: as in `Limits`."""

    def __init__(
        self,
        store: CheckpointStore,
        retry: RetryPolicy,
        status: SlotStatus,
        clock: Clock,
        executor: Executor = THREADS,
        backlog: HostBacklog | None = None,
        cached_bytes: int = SMALL,
    ) -> None:
        self._backlog, self._cached_bytes = backlog, cached_bytes
        self._store, self._retry, self._status, self._clock = store, retry, status, clock
        self._costs: Mapping[str, Sequence[float]] = {}  # replaced as a whole for other threads
        self._thread = WorkerThread[_Job]("saver", self._do, retry, BACKLOG, executor)

    @property
    def is_idle(self) -> bool:
        return self._thread.is_idle

    @property
    def backlog(self) -> Backlog:
        return self._thread.backlog

    def is_quick(self, state: State | None) -> bool:
        """Whether a state (or none) would be recorded about as soon as a fact."""
        return self.is_idle and (state is None or state.total <= SMALL)

    def seconds(self, plan: str) -> float:
        """The training time that keeping a state of a plan costs: the median of the last ones.

        The median ignores single slow ones, as when the machine stalled. An upload counts little, since training
        continues: ten gigabytes take two minutes to S3 and would otherwise be kept every three hours.
        """
        return median(self._costs.get(plan, FIRST_COSTS))

    def save(
        self,
        claim: Claim,
        place: str,
        state: State,
        on_stored: Callable[[Stored], None],
        *,
        copy_seconds: float = 0.0,
        on_cached: Callable[[Stored], None] | None = None,
    ) -> None:
        """Store a state, which belongs to the saver from here on; `on_stored` receives the result.

        copy_seconds: the time that copying the state took.
        on_cached: for branch points: receives the cached state before the upload. Raises `Closing` if there was no room
            before the slot had to end.
        """
        size = state.total
        self._await_room(size)

        def drop() -> None:
            state.close()
            if self._backlog is not None:
                self._backlog.remove(size)

        def save() -> None:
            try:
                written = self._write(claim, place, state, on_cached)
            finally:
                drop()
            if written is not None:
                stored, seconds = written
                _, *later = self._costs.get(claim.stream, FIRST_COSTS)
                self._costs = {**self._costs, claim.stream: (*later, copy_seconds + min(seconds, SAVE_SECONDS))}
                on_stored(stored)

        self._thread.put(_Job(claim, save, drop))

    def submit(self, claim: Claim, do: Callable[[], None]) -> None:
        """Do something after all earlier jobs, unless the chain is over by then. Ignores the capacity."""
        self._thread.put(_Job(claim, do), wait=False)

    def delete(self, claim: Claim, keys: Sequence[str], on_deleted: Callable[[], None]) -> None:
        """Delete a released checkpoint's objects. The scheduler deletes what cannot be deleted now."""

        def delete() -> None:
            try:
                for key in keys:
                    self._store.delete(key)
            except StoreUnavailable as problem:
                logger.info("%s; the scheduler will", problem)
            else:
                on_deleted()

        self.submit(claim, delete)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all jobs put before are done, and return whether they are in time."""
        return self._thread.drain(seconds)

    def close(self) -> None:
        self._thread.close()
        if self._backlog is not None:
            self._backlog.close()

    def _do(self, job: _Job) -> None:
        if job.claim.end_flag.is_set():
            job.drop()
        else:
            job.do()

    def _await_room(self, size: int) -> None:
        """Wait until the host's backlog has room. Raises `Closing`."""
        if self._backlog is None:
            return
        try:
            while there := self._backlog.add(size):
                about = f"{there:,} bytes of states are on their way to it from this host, of {self._backlog.limit:,}"
                self._status.put("backlog", f"waits for the store: {about}")
                self._retry.pause(LOOK_SECONDS)
        finally:
            self._status.remove("backlog")

    def _write(
        self, claim: Claim, place: str, state: State, on_cached: Callable[[Stored], None] | None
    ) -> tuple[Stored, float] | None:
        """The stored object and the seconds of the successful attempt; None if the chain ended first."""
        is_branch_point, cached = on_cached is not None, self._cache(place, state, on_cached)
        try:
            for number in self._retry.attempts():
                if claim.end_flag.is_set():
                    return None
                begun_at = self._clock()
                try:
                    stored = self._store.write(place, state, is_branch_point=is_branch_point, cached=cached)
                except StoreUnavailable as problem:
                    self._report(number, problem)
                else:
                    return stored, self._clock() - begun_at
            return None
        finally:
            self._status.remove("saver")

    def _cache(self, place: str, state: State, on_cached: Callable[[Stored], None] | None) -> Stored | None:
        """Small states are not cached: they are stored before a stage could begin with them."""
        if on_cached is None or state.total <= self._cached_bytes:
            return None
        try:
            cached = self._store.cache(place, state)
        except StoreUnavailable:  # writing the state will say so
            return None
        if cached is not None:
            on_cached(cached)
        return cached

    def _report(self, number: int, problem: StoreUnavailable) -> None:
        if number == 1:
            logger.warning("waiting for the store: %s", problem)
        if number == TRIES_BEFORE_NOTE:
            self._status.put("saver", f"waits for the store: {problem}")
