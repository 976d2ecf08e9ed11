"""The checkpoints of an installation, as states in memory: written once, and read back only if their hash is right.

A checkpoint exists because a fact in the log names it; what was written and never named is garbage.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from uuid import uuid4

from app.away import store_is_away
from app.object_store import PART, ObjectStore, StoreUnavailable
from app.workers.state import State


class CheckpointUnreadable(Exception):
    """A checkpoint is not there, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the log must know of a checkpoint to find it again and to trust it."""

    key: str
    sha256: str
    size: int


class CheckpointStore:
    """Keeps the states that were written or read last in memory, up to so many bytes. Safe to share between threads."""

    def __init__(self, store: ObjectStore, memory_bytes: int = 0) -> None:
        self._store, self._recent = store, _RecentStates(memory_bytes)

    def write(self, place: str, state: State) -> Stored:
        """Store a state under a new key that begins with `place`. `state` stays the caller's. Raises
        `StoreUnavailable`."""
        key, digest = f"{place}-{uuid4().hex[:12]}.safetensors", hashlib.sha256()
        try:
            self._store.write(key, _parts(state, digest))
        except Exception as error:  # whatever the client of the store raises
            raise StoreUnavailable(f"checkpoint {key} cannot be written: {_say(error)}") from error
        self._recent.keep(key, state)
        return Stored(key, digest.hexdigest(), state.size)

    def read(self, key: str, sha256: str) -> State:
        """The state of a checkpoint, which is the caller's to close.

        Raises `CheckpointUnreadable` when it is gone or damaged, `StoreUnavailable` when that cannot be said, and
        OSError when there is no memory for it.
        """
        if (state := self._recent.copy(key)) is not None:
            return state
        state, digest = State.empty(), hashlib.sha256()
        try:
            for part in self._read(key):
                digest.update(part)
                state.append(part)
            if digest.hexdigest() != sha256:
                raise CheckpointUnreadable(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
        except BaseException:
            state.close()
            raise
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

    def _read(self, key: str) -> Iterator[bytes]:
        try:
            yield from self._store.read(key)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not store_is_away(error):
                raise CheckpointUnreadable(f"checkpoint {key} is not there") from None
            raise StoreUnavailable(f"checkpoint {key} cannot be read: {_say(error)}") from error


class _RecentStates:
    """Owns copies of states, which cost no memory as long as the originals are there, too."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._states: OrderedDict[str, State] = OrderedDict()

    def keep(self, key: str, state: State) -> None:
        if state.size > self._limit:
            return
        with self._lock:
            self._drop(key)
            self._states[key] = state.copy()
            self._bytes += state.size
            while self._bytes > self._limit:
                self._drop(next(iter(self._states)))

    def copy(self, key: str) -> State | None:
        with self._lock:
            if key not in self._states:
                return None
            self._states.move_to_end(key)
            return self._states[key].copy()

    def forget(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        if (state := self._states.pop(key, None)) is not None:
            self._bytes -= state.size
            state.close()


def _parts(state: State, digest: hashlib._Hash) -> Iterator[memoryview]:
    """The image in pieces, which are hashed on their way."""
    image = state.view()
    for begin in range(0, state.size, PART):
        part = image[begin : begin + PART]
        digest.update(part)
        yield part


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
