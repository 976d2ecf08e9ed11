"""Reads and writes checkpoints as states in memory, and verifies their hashes.

A checkpoint exists because a fact in the log names it; an object that no fact names is garbage.

Runs on: the thread that trains, which reads, and the saver's, which writes and deletes.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import uuid4

from app.domain.chain_assignment import ResumePoint
from app.domain.events import StoredPart
from app.outages import store_is_unavailable
from app.storage.object_store import PART, ObjectStore, StoreUnavailable
from app.workers.slot.retry import Clock, Instant, RetryPolicy
from app.workers.slot.slot_status import SlotStatus
from app.workers.state import RecentStates, State

logger = logging.getLogger(__name__)

Part = TypeVar("Part", bytes, memoryview)

SMALL = 2**20
"""Hashing fewer bytes is faster than starting a thread for it."""

TRIES_BEFORE_NOTE = 4
"""After this many failed reads of a checkpoint, the slot's row says that it waits."""


class CheckpointUnreadable(Exception):
    """A checkpoint is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the log records of a checkpoint, to find and verify it. size: including all parts.

    parts: the objects of the other ranks. looked: as in `CheckpointKept`.
    """

    key: str
    sha256: str
    size: int
    parts: tuple[StoredPart, ...] = ()
    looked: bool = False


class CheckpointStore:
    """Caches recent states in memory up to a limit; branch points stay longest. Thread-safe."""

    def __init__(self, store: ObjectStore, memory_bytes: int = 0) -> None:
        self._store, self._recent = store, RecentStates(memory_bytes)

    def cache(self, place: str, state: State) -> Stored | None:
        """Put a state where this machine's slots find it, before `write`; None if there is no cache for it."""
        stored = list[StoredPart]()
        for key, each in self._new_keys(place, state):
            digest = hashlib.sha256()
            if not self._store.cache(key, _hash_image(each, digest)):
                return None
            stored.append(StoredPart(key, digest.hexdigest(), each.size))
        return self._make_stored(stored, state, is_branch_point=True)

    def write(self, place: str, state: State, *, is_branch_point: bool = False, cached: Stored | None = None) -> Stored:
        """Store a state under a new key that begins with `place`. `state` stays the caller's.

        is_branch_point: whether several stages wait to begin there.
        cached: the result of `cache`, whose keys are then used. Raises `StoreUnavailable`.
        """
        if cached is not None:
            for key, each in zip((cached.key, *(part.key for part in cached.parts)), state.images, strict=True):
                self._write(key, _pieces(each))
            return cached
        written = list[StoredPart]()
        try:
            for key, each in self._new_keys(place, state):
                digest = hashlib.sha256()
                self._write(key, _hash_image(each, digest))
                written.append(StoredPart(key, digest.hexdigest(), each.size))
        except StoreUnavailable:
            for part in written:  # another try has other names
                with suppress(StoreUnavailable):
                    self.delete(part.key)
            raise
        return self._make_stored(written, state, is_branch_point=is_branch_point)

    def read(self, key: str, sha256: str, parts: Sequence[StoredPart] = ()) -> State:
        """The state of a checkpoint, which is the caller's to close.

        Raises `CheckpointUnreadable` when any part is missing or damaged, `StoreUnavailable` during an outage, and
        OSError when there is no memory for it.
        """
        if (state := self._recent.copy(key)) is not None:
            return state
        state = self._read(key, sha256)
        try:
            for part in parts:
                state.parts = (*state.parts, self._read(part.key, part.sha256))
        except BaseException:
            state.close()
            raise
        self._recent.keep(key, state)
        return state

    def _new_keys(self, place: str, state: State) -> Iterator[tuple[str, State]]:
        """The images of a state with new keys. Raises `StoreUnavailable`."""
        name = f"{place}-{uuid4().hex[:12]}"
        try:
            prefix = self._store.prefix
        except Exception as error:  # any, of the database that names the installation
            raise StoreUnavailable(f"checkpoint {name} cannot be written: {_error_text(error)}") from error
        for number, each in enumerate(state.images):
            yield f"{prefix}{name}{f'.{number}' if number else ''}.safetensors", each

    def _make_stored(self, written: Sequence[StoredPart], state: State, *, is_branch_point: bool) -> Stored:
        whole, *parts = written
        self._recent.keep(whole.key, state, is_branch_point=is_branch_point)
        return Stored(whole.key, whole.sha256, state.total, tuple(parts), state.looked)

    def _write(self, key: str, parts: Iterable[memoryview]) -> None:
        try:
            self._store.write(key, parts)
        except Exception as error:  # the client of the store may raise anything
            raise StoreUnavailable(f"checkpoint {key} cannot be written: {_error_text(error)}") from error

    def _read(self, key: str, sha256: str) -> State:
        """One object."""
        state, digest = self._fetch(key)
        if digest != sha256 and self._store.distrust(key):
            state.close()
            state, digest = self._fetch(key)
        if digest != sha256:
            state.close()
            self._store.distrust(key)
            raise CheckpointUnreadable(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
        return state

    def delete(self, key: str) -> None:
        """Delete an object, which may be gone already. Raises `StoreUnavailable`."""
        self._recent.forget(key)
        try:
            self._store.delete(key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreUnavailable(f"checkpoint {key} cannot be deleted: {_error_text(error)}") from error

    def close(self) -> None:
        """Free the cached states."""
        self._recent.clear()

    def _fetch(self, key: str) -> tuple[State, str]:
        """The object and its hash. A local file is used in place; others are copied into memory."""
        digest = hashlib.sha256()
        with self._translate_errors(key):
            fd = self._store.open(key)
        state = State.empty() if fd is None else State(fd, os.fstat(fd).st_size)
        try:
            with self._translate_errors(key):
                if fd is None:
                    for part in _hash_parts(self._store.read(key), digest):
                        state.append(part)
                else:
                    for part in _read_parts(fd):
                        digest.update(part)
        except BaseException:
            state.close()
            raise
        return state, digest.hexdigest()

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not store_is_unavailable(error):
                raise CheckpointUnreadable(f"checkpoint {key} is not there") from None
            raise StoreUnavailable(f"checkpoint {key} cannot be read: {_error_text(error)}") from error


def _hash_image(state: State, digest: hashlib._Hash) -> Iterator[memoryview]:
    """The image in pieces; the hash is complete after the last one."""
    if state.size > SMALL:
        return _hash_parts(_pieces(state), digest)
    digest.update(state.view())
    return _pieces(state)


def _hash_parts(parts: Iterable[Part], digest: hashlib._Hash) -> Iterator[Part]:
    """The same parts, each hashed while its consumer uses it."""
    with ThreadPoolExecutor(1, "hash") as hashing:
        for part in parts:
            done = hashing.submit(digest.update, part)
            yield part
            done.result()


def _pieces(state: State) -> Iterator[memoryview]:
    image = state.view()
    return (image[begin : begin + PART] for begin in range(0, state.size, PART))


def _read_parts(fd: int) -> Iterator[bytes]:
    place = 0
    while part := os.pread(fd, PART, place):
        yield part
        place += len(part)


def _error_text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ------------------------------------------------------------------------------------------ where a chain begins


class Reader(Protocol):
    """See `CheckpointReader`."""

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State: ...


class CheckpointReader:
    """strike_after_seconds: a missing or damaged checkpoint is read again for this long."""

    def __init__(
        self,
        store: CheckpointStore,
        retry: RetryPolicy,
        status: SlotStatus,
        clock: Clock,
        strike_after_seconds: float,
    ) -> None:
        self._store, self._retry, self._status, self._clock = store, retry, status, clock
        self._strike_after_seconds = strike_after_seconds

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State:
        """The state, which is the caller's to close. check: raises when it is no longer needed.

        Raises `CheckpointUnreadable` after repeated reads (at once if only this machine has it), `Closing`, and what
        `check` does.
        """
        unreadable_since: Instant | None = None
        try:
            for number in self._retry.attempts():
                check()
                try:
                    return self._store.read(resume.key, resume.sha256, resume.parts)
                except CheckpointUnreadable as problem:
                    now = self._clock()
                    unreadable_since = now if unreadable_since is None else unreadable_since
                    if resume.is_cached or now - unreadable_since >= self._strike_after_seconds:
                        raise
                    self._report(number, problem)
                except (StoreUnavailable, OSError) as problem:
                    if resume.is_cached:
                        raise CheckpointUnreadable(str(problem)) from problem
                    unreadable_since = None  # the store was just unavailable: do not trust a missing file yet
                    self._report(number, problem)
            raise AssertionError("tries never end")
        finally:
            self._status.remove("reader")

    def _report(self, number: int, problem: Exception) -> None:
        if number == 1:
            logger.warning("waiting for a checkpoint: %s", problem)
        if number == TRIES_BEFORE_NOTE:
            self._status.put("reader", f"waits for the store: {problem}")


class ReadOnce:
    """Reads a checkpoint once for several chains that begin there, and holds it until `close`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._held: dict[str, State] = {}

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State:
        if resume.key not in self._held:
            self._held[resume.key] = self._reader.read(resume, check)
        return self._held[resume.key].copy()

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].close()
