"""The checkpoints of an installation, as states in memory: written once, and read back only if their hash is right.

A checkpoint exists because a fact in the log names it; what was written and never named is garbage.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from uuid import uuid4

from app.away import store_is_away
from app.object_store import PART, ObjectStore, StoreUnavailable
from app.workers.state import State

SMALL = 2**20
"""So many bytes are hashed faster than a thread is started for them."""

MOST_RECENT = 64
"""So many states are kept in memory at most, however small they are: each is an open file."""


class CheckpointUnreadable(Exception):
    """A checkpoint is not there, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the log must know of a checkpoint to find it again and to trust it."""

    key: str
    sha256: str
    size: int


class CheckpointStore:
    """Keeps the states that were written or read last in memory, up to so many bytes: those where several stages begin
    before all others. Safe to share between threads."""

    def __init__(self, store: ObjectStore, memory_bytes: int = 0) -> None:
        self._store, self._recent = store, _RecentStates(memory_bytes)

    def write(self, place: str, state: State, *, is_branch_point: bool = False) -> Stored:
        """Store a state under a new key that begins with `place`. `state` stays the caller's.

        is_branch_point: several stages wait to begin there. Raises `StoreUnavailable`.
        """
        key, digest = f"{place}-{uuid4().hex[:12]}.safetensors", hashlib.sha256()
        try:
            self._store.write(key, _hashed(state, digest))
        except Exception as error:  # whatever the client of the store raises
            raise StoreUnavailable(f"checkpoint {key} cannot be written: {_say(error)}") from error
        self._recent.keep(key, state, is_branch_point=is_branch_point)
        return Stored(key, digest.hexdigest(), state.size)

    def read(self, key: str, sha256: str) -> State:
        """The state of a checkpoint, which is the caller's to close.

        Raises `CheckpointUnreadable` when it is gone or damaged, `StoreUnavailable` when that cannot be said, and
        OSError when there is no memory for it.
        """
        if (state := self._recent.copy(key)) is not None:
            return state
        state, digest = self._fetched(key)
        if digest != sha256:
            state.close()
            raise CheckpointUnreadable(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
        self._recent.keep(key, state)
        return state

    def delete(self, key: str) -> None:
        """Raises `StoreUnavailable`. It may be gone already."""
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
                for part in self._store.read(key) if fd is None else _parts_of(fd):
                    digest.update(part)
                    if fd is None:
                        state.append(part)
        except BaseException:
            state.close()
            raise
        return state, digest.hexdigest()

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not store_is_away(error):
                raise CheckpointUnreadable(f"checkpoint {key} is not there") from None
            raise StoreUnavailable(f"checkpoint {key} cannot be read: {_say(error)}") from error


class _RecentStates:
    """Owns copies of states, which cost no memory as long as the originals are there, too."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._states: OrderedDict[str, State] = OrderedDict()
        self._branch_points: set[str] = set()

    def keep(self, key: str, state: State, *, is_branch_point: bool = False) -> None:
        if state.size > self._limit:
            return
        with self._lock:
            self._drop(key)
            self._states[key] = state.copy()
            self._bytes += state.size
            if is_branch_point:
                self._branch_points.add(key)
            while self._bytes > self._limit or len(self._states) > MOST_RECENT:
                self._drop(self._least_wanted())

    def _least_wanted(self) -> str:
        """The one used longest ago, of those where only one stage begins, if there are any."""
        return next((key for key in self._states if key not in self._branch_points), next(iter(self._states)))

    def copy(self, key: str) -> State | None:
        with self._lock:
            if key not in self._states:
                return None
            self._states.move_to_end(key)
            return self._states[key].copy()

    def forget(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        with self._lock:
            for key in list(self._states):
                self._drop(key)

    def _drop(self, key: str) -> None:
        self._branch_points.discard(key)
        if (state := self._states.pop(key, None)) is not None:
            self._bytes -= state.size
            state.close()


def _hashed(state: State, digest: hashlib._Hash) -> Iterator[memoryview]:
    """The image in pieces, each of which is hashed while it is written."""
    image = state.view()
    if state.size <= SMALL:
        digest.update(image)
        yield image
        return
    with ThreadPoolExecutor(1, "hash") as hashing:
        for begin in range(0, state.size, PART):
            part = image[begin : begin + PART]
            done = hashing.submit(digest.update, part)
            yield part
            done.result()


def _parts_of(fd: int) -> Iterator[bytes]:
    """What is in a file."""
    place = 0
    while part := os.pread(fd, PART, place):
        yield part
        place += len(part)


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
