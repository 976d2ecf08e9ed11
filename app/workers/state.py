"""Runs on: the thread that trains, and the saver's.

A model's whole state on its way between processes: an image in a file without a name, or in one of a store.
The last ones stay in memory.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from stagetree.runtime.wire import anonymous_file


class _Memory:
    """What copies of a state have in common: says when the last of them is closed, and whether it was lent."""

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
    """Owns the descriptor `fd` of a file that holds `size` bytes. Loading it into another process copies nothing.

    parts: the states of other ranks, where it is divided among several; they are closed with it. looked: whether it
    holds what the trainer held besides.
    give_back: called when it and its copies are closed, with whether a model was loaded from it: parts of that may lie
    there still, so its memory must not be used again.
    """

    def __init__(self, fd: int, size: int, give_back: Callable[[bool], None] | None = None) -> None:
        self.fd, self.size, self.parts = fd, size, tuple[State, ...]()
        self._memory, self.looked = _Memory(give_back), False

    @property
    def images(self) -> tuple[State, ...]:
        """Itself, and its parts."""
        return (self, *self.parts)

    @property
    def fds(self) -> tuple[int, ...]:
        """The files of all of it."""
        return tuple(each.fd for each in self.images)

    @property
    def total(self) -> int:
        """The size of all of it."""
        return sum(each.size for each in self.images)

    @classmethod
    def of(cls, image: bytes | memoryview) -> State:
        """A copy of an image that was read from somewhere. Raises OSError if there is no room."""
        state = cls.empty()
        state.append(image)
        return state

    @classmethod
    def empty(cls) -> State:
        """An image of which nothing is there yet. Raises OSError if there is no room."""
        return cls(anonymous_file(0), 0)

    def append(self, part: bytes | memoryview) -> None:
        """The next part of an image that arrives in parts. Raises OSError if there is no room."""
        rest = memoryview(part)
        while rest:
            written = os.pwrite(self.fd, rest, self.size)
            self.size, rest = self.size + written, rest[written:]

    def copy(self) -> State:
        """The same image under another descriptor, to be closed apart from this one."""
        other = State(os.dup(self.fd), self.size)
        other._memory, other.looked = self._memory, self.looked
        self._memory.join()
        other.parts = tuple(part.copy() for part in self.parts)
        return other

    def lend(self) -> None:
        """A model is loaded from it, and may have parts of it for as long as it likes."""
        self._memory.lend()
        for part in self.parts:
            part.lend()

    def view(self) -> memoryview:
        """The image, where it is."""
        return memoryview(mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """The memory is free when nobody has it open or uses a view of it any more. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._memory.leave()
        for part in self.parts:
            part.close()


MAX_STATES = 64
"""So many states are kept in memory at most, however small they are: each is an open file."""


class RecentStates:
    """Owns copies of states, which cost no memory as long as the originals are there, too."""

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
                self._drop(self._eviction_candidate())

    def _eviction_candidate(self) -> str:
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
            self._bytes -= state.total
            state.close()
