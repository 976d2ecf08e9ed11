"""A model's whole state on its way between processes: an image in an anonymous file, or in a store's file.

`RecentStates` caches the last ones in memory.

Runs on: the thread that trains, and the saver's.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from stagetree.system.files import anonymous_file


class _Memory:
    """Shared by all copies of a state: counts them, and remembers whether a model was loaded from one."""

    def __init__(self, give_back: Callable[[bool], None] | None) -> None:
        self._give_back, self._users, self._lock = give_back, 1, Lock()
        self._is_lent = False

    def join(self) -> None:
        with self._lock:
            self._users += 1

    def lend(self) -> None:
        self._is_lent = True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last and self._give_back is not None:
            self._give_back(self._is_lent)


class State:
    """Owns the descriptor `fd` of a file of `size` bytes. Loading it into another process copies nothing.

    parts: other ranks' parts of a sharded state; closed with it.
    looked: whether it includes the trainer's other held objects, for comparisons.
    give_back: called when the state and its copies are closed, with whether a model was loaded from it. Such a model
        may still use this memory, so it must not be reused.
    """

    def __init__(self, fd: int, size: int, give_back: Callable[[bool], None] | None = None) -> None:
        self.fd, self.size, self.parts = fd, size, tuple[State, ...]()
        self._memory, self.looked = _Memory(give_back), False

    @property
    def images(self) -> tuple[State, ...]:
        """The state itself and its parts."""
        return (self, *self.parts)

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(each.fd for each in self.images)

    @property
    def total(self) -> int:
        """The bytes of all images."""
        return sum(each.size for each in self.images)

    @classmethod
    def from_bytes(cls, image: bytes | memoryview) -> State:
        """A copy of an image in memory. Raises OSError if there is no room."""
        state = cls.empty()
        state.append(image)
        return state

    @classmethod
    def empty(cls) -> State:
        """An empty image. Raises OSError if there is no room."""
        return cls(anonymous_file(0), 0)

    def append(self, part: bytes | memoryview) -> None:
        """Append the next part of an image. Raises OSError if there is no room."""
        rest = memoryview(part)
        while rest:
            written = os.pwrite(self.fd, rest, self.size)
            self.size, rest = self.size + written, rest[written:]

    def copy(self) -> State:
        """The same image under another descriptor, which is closed separately."""
        other = State(os.dup(self.fd), self.size)
        other._memory, other.looked = self._memory, self.looked
        self._memory.join()
        other.parts = tuple(part.copy() for part in self.parts)
        return other

    def lend(self) -> tuple[int, ...]:
        """The descriptors, to load a model, which may use the memory for as long as the model exists."""
        for each in self.images:
            each._memory.lend()
        return self.fds

    def view(self) -> memoryview:
        """The image, mapped into memory."""
        return memoryview(mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """The memory is freed when no copy or view is left. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._memory.leave()
        for part in self.parts:
            part.close()


MAX_STATES = 64
"""Limits the cached states, however small they are: each is an open file."""


class RecentStates:
    """Copies of recent states. A copy takes no memory while the original exists."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._states: OrderedDict[str, State] = OrderedDict()
        self._branch_points: set[str] = set()

    def keep(self, key: str, state: State, *, is_branch_point: bool = False) -> None:
        if state.total > self._limit:
            return
        with self._lock:
            self._drop(key)
            self._states[key] = state.copy()
            self._bytes += state.total
            if is_branch_point:
                self._branch_points.add(key)
            while self._bytes > self._limit or len(self._states) > MAX_STATES:
                by_use = iter(self._states)  # branch points go last
                self._drop(next((key for key in by_use if key not in self._branch_points), next(iter(self._states))))

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
            self._bytes -= state.total
            state.close()
