"""Runs on: the thread that trains, which reads, and the saver's, which writes and deletes.

The checkpoints of an installation, as states in memory: written once, and read back only if their hash is right.

A checkpoint exists because a fact in the log names it; what was written and never named is garbage.
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
from app.workers.slot.retry import Clock, Instant, RetryPolicy, SlotStatus
from app.workers.state import RecentStates, State

logger = logging.getLogger(__name__)

Part = TypeVar("Part", bytes, memoryview)

SMALL = 2**20
"""So many bytes are hashed faster than a thread is started for them."""

NOTED_AFTER = 4
"""After so many tries in vain to read a checkpoint, the slot's row says that it waits."""


class CheckpointUnreadable(Exception):
    """A checkpoint is not there, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the log must know of a checkpoint to find it again and to trust it. size: of all of it.

    parts: the objects of the other ranks. looked: as in `CheckpointKept`.
    """

    key: str
    sha256: str
    size: int
    parts: tuple[StoredPart, ...] = ()
    looked: bool = False


class CheckpointStore:
    """Keeps the states that were written or read last in memory, up to so many bytes: those where several stages begin
    before all others. Safe to share between threads."""

    def __init__(self, store: ObjectStore, memory_bytes: int = 0) -> None:
        self._store, self._recent = store, RecentStates(memory_bytes)

    def cache(self, place: str, state: State) -> Stored | None:
        """Put a state where the slots of this machine find it, before `write`; None where there is no place for it."""
        stored = list[StoredPart]()
        for key, each in self._named(place, state):
            digest = hashlib.sha256()
            if not self._store.cache(key, _hashed_image(each, digest)):
                return None
            stored.append(StoredPart(key, digest.hexdigest(), each.size))
        return self._as_stored(stored, state, is_branch_point=True)

    def write(self, place: str, state: State, *, is_branch_point: bool = False, cached: Stored | None = None) -> Stored:
        """Store a state under a new key that begins with `place`. `state` stays the caller's.

        is_branch_point: several stages wait to begin there. cached: where they find it already: it has these names, at
        each try. Raises `StoreUnavailable`.
        """
        if cached is not None:
            for key, each in zip((cached.key, *(part.key for part in cached.parts)), state.images, strict=True):
                self._write(key, _pieces(each))
            return cached
        written = list[StoredPart]()
        try:
            for key, each in self._named(place, state):
                digest = hashlib.sha256()
                self._write(key, _hashed_image(each, digest))
                written.append(StoredPart(key, digest.hexdigest(), each.size))
        except StoreUnavailable:
            for part in written:  # another try has other names
                with suppress(StoreUnavailable):
                    self.delete(part.key)
            raise
        return self._as_stored(written, state, is_branch_point=is_branch_point)

    def read(self, key: str, sha256: str, parts: Sequence[StoredPart] = ()) -> State:
        """The state of a checkpoint, which is the caller's to close.

        Raises `CheckpointUnreadable` when any of it is gone or damaged, `StoreUnavailable` when that cannot be said,
        and OSError when there is no memory for it.
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

    def _named(self, place: str, state: State) -> Iterator[tuple[str, State]]:
        """The objects of a state, under new keys. Raises `StoreUnavailable`."""
        name = f"{place}-{uuid4().hex[:12]}"
        try:
            prefix = self._store.prefix
        except Exception as error:  # any, of the database that names the installation
            raise StoreUnavailable(f"checkpoint {name} cannot be written: {_say(error)}") from error
        for number, each in enumerate(state.images):
            yield f"{prefix}{name}{f'.{number}' if number else ''}.safetensors", each

    def _as_stored(self, written: Sequence[StoredPart], state: State, *, is_branch_point: bool) -> Stored:
        whole, *parts = written
        self._recent.keep(whole.key, state, is_branch_point=is_branch_point)
        return Stored(whole.key, whole.sha256, state.total, tuple(parts), state.looked)

    def _write(self, key: str, parts: Iterable[memoryview]) -> None:
        try:
            self._store.write(key, parts)
        except Exception as error:  # whatever the client of the store raises
            raise StoreUnavailable(f"checkpoint {key} cannot be written: {_say(error)}") from error

    def _read(self, key: str, sha256: str) -> State:
        """One object."""
        state, digest = self._fetched(key)
        if digest != sha256 and self._store.distrust(key):
            state.close()
            state, digest = self._fetched(key)
        if digest != sha256:
            state.close()
            self._store.distrust(key)
            raise CheckpointUnreadable(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
        return state

    def delete(self, key: str) -> None:
        """Delete an object. Raises `StoreUnavailable`. It may be gone already."""
        self._recent.forget(key)
        try:
            self._store.delete(key)
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreUnavailable(f"checkpoint {key} cannot be deleted: {_say(error)}") from error

    def close(self) -> None:
        """Let go of what is kept in memory."""
        self._recent.clear()

    def _fetched(self, key: str) -> tuple[State, str]:
        """The object and its hash. One on this machine is read once, and stays where it is; others are copied here."""
        digest = hashlib.sha256()
        with self._explained(key):
            fd = self._store.open(key)
        state = State.empty() if fd is None else State(fd, os.fstat(fd).st_size)
        try:
            with self._explained(key):
                if fd is None:
                    for part in _hashed(self._store.read(key), digest):
                        state.append(part)
                else:
                    for part in _parts_of(fd):
                        digest.update(part)
        except BaseException:
            state.close()
            raise
        return state, digest.hexdigest()

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not store_is_unavailable(error):
                raise CheckpointUnreadable(f"checkpoint {key} is not there") from None
            raise StoreUnavailable(f"checkpoint {key} cannot be read: {_say(error)}") from error


def _hashed_image(state: State, digest: hashlib._Hash) -> Iterator[memoryview]:
    """The image in pieces, and its hash by the time that all of them were used."""
    if state.size > SMALL:
        return _hashed(_pieces(state), digest)
    digest.update(state.view())
    return _pieces(state)


def _hashed(parts: Iterable[Part], digest: hashlib._Hash) -> Iterator[Part]:
    """The same parts, each of which is hashed while its reader uses it."""
    with ThreadPoolExecutor(1, "hash") as hashing:
        for part in parts:
            done = hashing.submit(digest.update, part)
            yield part
            done.result()


def _pieces(state: State) -> Iterator[memoryview]:
    image = state.view()
    return (image[begin : begin + PART] for begin in range(0, state.size, PART))


def _parts_of(fd: int) -> Iterator[bytes]:
    """What is in a file."""
    place = 0
    while part := os.pread(fd, PART, place):
        yield part
        place += len(part)


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ------------------------------------------------------------------------------------------ where a chain begins


class Reader(Protocol):
    """See `CheckpointReader`."""

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State: ...


class CheckpointReader:
    """strike_after_seconds: a checkpoint that is missing or damaged is looked at again for so long."""

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
        """The state, which is the caller's to close. check: raises when it is not wanted any more.

        Raises `CheckpointUnreadable` after repeated looks, at once if only this machine has it, `Closing`, and what
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
                    self._say(number, problem)
                except (StoreUnavailable, OSError) as problem:
                    if resume.is_cached:
                        raise CheckpointUnreadable(str(problem)) from problem
                    unreadable_since = None  # whoever says now that it is not there has just been ill
                    self._say(number, problem)
            raise AssertionError("tries never end")
        finally:
            self._status.remove("reader")

    def _say(self, number: int, problem: Exception) -> None:
        if number == 1:
            logger.warning("waiting for a checkpoint: %s", problem)
        if number == NOTED_AFTER:
            self._status.put("reader", f"waits for the store: {problem}")


class ReadOnce:
    """For chains that begin together: where several of them begin is read once, and held until `close`."""

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
