"""Runs on: the saver's thread, but for `save`, `submit` and `delete`, which the thread that trains calls.

Checkpoints on their way to the store, in order, while the next stage trains.

A store that is away is waited for, as long as the process lives and the chain is ours: no fact is dropped. Facts that
must come after a checkpoint, such as the end of its chain, go through here as well.

States that wait take memory, so training waits where the slots of the host have too many bytes on their way.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Lock
from uuid import uuid4

from app.storage.object_store import StoreUnavailable
from app.workers.slot.checkpoint_store import SMALL, CheckpointStore, Stored
from app.workers.slot.claim import Claim
from app.workers.slot.retry import LOOK_SECONDS, Clock, RetryPolicy, SlotStatus, WorkerThread
from app.workers.state import State
from app.workers.threads import THREADS, Executor
from stagetree.backoff import Backoff

logger = logging.getLogger(__name__)

BACKLOG = 4
"""So many states may wait in memory; whoever has one more waits."""

SAVE_SECONDS = 0.05
"""What keeping a state is taken to cost before one of its plan was kept, and the most that an upload counts."""

FIRST_COSTS = (SAVE_SECONDS,) * 3

TRIES_BEFORE_NOTE = 4
"""After so many tries in vain, the slot's row says that it waits."""


class HostBacklog:
    """The bytes of states that the slots of a host hold in memory on their way to the store, up to a limit in all.

    Each slot may have one state, however large: none waits without end. Each writes its bytes into a file of its own,
    whose lock the kernel opens when its process dies. A folder that cannot be used bounds nothing.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.limit, self._folder, self._mine, self._lock = limit, folder, 0, Lock()
        self._path, self._file = folder / f"{uuid4().hex}.bytes", -1
        with self._log_errors():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _open_locked(self._path)

    def add(self, size: int) -> int:
        """Count a state, if there is room for it. If not, how many bytes are on their way; else 0."""
        with self._lock:
            with self._log_errors(), self._lock_folder():
                if self._mine and (there := self._mine + self._others()) + size > self.limit:
                    return there
                self._write(self._mine + size)
            self._mine += size
            return 0

    def remove(self, size: int) -> None:
        """A state is stored, or not wanted any more."""
        with self._lock:
            self._mine -= size
            with self._log_errors():
                self._write(self._mine)

    def close(self) -> None:
        """Nothing is on its way any more."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _others(self) -> int:
        return sum(_read_bytes(path) for path in self._folder.glob("*.bytes") if path != self._path)

    def _write(self, size: int) -> None:
        if self._file >= 0:
            os.pwrite(self._file, f"{size:020}".encode(), 0)

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Of two slots that ask at once, the second hears of the first one's state."""
        file = _open_locked(self._folder / "lock")
        try:
            yield
        finally:
            os.close(file)

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            logger.warning("bytes on their way to the store are not counted in %s: %s", self._folder, problem)


def _open_locked(path: Path) -> int:
    """Raises BlockingIOError where another process has the lock for long: it was stopped, say."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in Backoff(0.001, LOOK_SECONDS).attempts(most=20):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
        raise BlockingIOError(f"{path} is locked by another process")
    except BaseException:
        os.close(file)
        raise


def _read_bytes(path: Path) -> int:
    """What another slot has on its way; nothing if it is dead, whose file goes."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(file, 20) or 0)
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
    return 0


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Job:
    """drop: in its place, if the chain is over."""

    claim: Claim
    do: Callable[[], None]
    drop: Callable[[], None] = _do_nothing


class Saver:
    """clock: of how long it takes. backlog: of the host; None bounds no bytes. cached_bytes: as in `Limits`."""

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
        self._costs: Mapping[str, Sequence[float]] = {}  # put in place whole: others read it
        self._thread = WorkerThread[_Job]("saver", self._do, retry, BACKLOG, executor)

    @property
    def is_idle(self) -> bool:
        return self._thread.is_idle

    def is_quick(self, state: State | None) -> bool:
        """Whether a state, or that there is none, would be told of about as soon as a fact is on record."""
        return self.is_idle and (state is None or state.total <= SMALL)

    def seconds(self, plan: str) -> float:
        """The time that training loses by keeping a state of a plan: the median of the last ones.

        One that took long, as where the machine stood still, must not make the next ones rare; nor must an upload,
        which costs little: ten gigabytes are two minutes on their way to S3, and would be kept every three hours.
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
        """Store a state, which is the saver's from here on; `on_stored` gets what was stored.

        copy_seconds: what it took so far. on_cached: where several stages wait to begin; it hears of what they find on
        this machine before it is stored. Raises `Closing` if there never was room for it.
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
        """Do something after all that came before, unless the chain is over at that point. Does not wait for room."""
        self._thread.put(_Job(claim, do), wait=False)

    def delete(self, claim: Claim, keys: Sequence[str], on_deleted: Callable[[], None]) -> None:
        """Delete the objects of a checkpoint that is released. What cannot be at once is left to the scheduler."""

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
        """Wait until everything is done that was given so far, or for so many seconds; whether it is."""
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
        """Until so many bytes more may be on their way from this host. Raises `Closing`."""
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
        """The stored object, and the seconds of the attempt; None if the chain was over before the store took it."""
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
        """A small state is stored before anybody could begin with it."""
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
