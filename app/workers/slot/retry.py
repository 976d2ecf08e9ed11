"""Retries and waits of a slot's threads: unlimited during outages, until the slot must close.

Also the slot's status sentence, moments and durations, the shared time of lanes, and worker threads with a queue.

Runs on: any thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, NewType, TypeVar

from app.workers.threads import THREADS, Executor
from stagetree.backoff import Backoff

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds after the first attempt, and the longest pause after many."""


class Closing(Exception):
    """The slot must end, and waits for nothing any more."""


class RetryPolicy:
    """Shared by a slot's threads. wait: for this many seconds, or less if the slot must end meanwhile."""

    def __init__(self, wait: Callable[[float], object] | None = None, executor: Executor = THREADS) -> None:
        self._closed = executor.flag()
        self._wait = wait or self._closed.wait

    def close(self) -> None:
        """Stop all waiting."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def pause(self, seconds: float) -> None:
        """Raises `Closing`."""
        self._wait(seconds)
        if self.is_closed:
            raise Closing

    def attempts(self) -> Iterator[int]:
        """1, 2, 3, ..., with growing pauses between them. Raises `Closing`."""
        return Backoff(FIRST_PAUSE, LONGEST_PAUSE, spread=0.0).attempts(wait=self.pause)


class SlotStatus:
    """What a slot waits for or suffers from: at most one note of each source, for its row. Thread-safe."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._lock = Lock()

    def put(self, source: str, text: str) -> None:
        with self._lock:
            self._notes[source] = text

    def remove(self, source: str) -> None:
        with self._lock:
            self._notes.pop(source, None)

    @property
    def text(self) -> str | None:
        with self._lock:
            return "; ".join(self._notes[source] for source in sorted(self._notes)) or None


Instant = NewType("Instant", float)
"""Monotonic seconds; only comparable within one clock."""

Seconds = NewType("Seconds", float)
"""A duration."""

Clock = Callable[[], Instant]


def monotonic() -> Instant:
    return Instant(time.monotonic())


class SharedTime:
    """Divides a slot's time among the lanes of a group, so that their seconds add up to the elapsed time.

    Time charged to no lane is divided among all members.
    """

    def __init__(self, clock: Clock, members: Collection[int]) -> None:
        self._clock, self._at = clock, clock()
        self._seconds = dict.fromkeys(members, 0.0)
        self._payers: Collection[int] = members

    def seconds_of(self, member: int) -> Seconds:
        """The seconds charged to a lane."""
        self._settle()
        return Seconds(self._seconds[member])

    @contextmanager
    def charge(self, payers: Collection[int]) -> Iterator[None]:
        """Charge the time in the block to these lanes."""
        self._settle()
        before, self._payers = self._payers, payers
        try:
            yield
        finally:
            self._settle()
            self._payers = before

    def leave(self, member: int) -> None:
        """Charge later time to the other lanes only."""
        self._settle()
        self._payers = [payer for payer in self._payers if payer != member]

    def _settle(self) -> None:
        before, self._at = self._at, self._clock()
        for payer in self._payers:
            self._seconds[payer] += (self._at - before) / len(self._payers)


logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a blocked `put` checks whether the slot must end."""
YIELD_SECONDS = 0.006
"""An idle thread waits this long before a new item. Threads share the interpreter lock, and the item's sender must
first send the message of the next stage.
"""

CLOSE_SECONDS = 1.0
"""All waits end at once; a call to a silent server must not delay the process's end."""

Item = TypeVar("Item")


class WorkerThread(Generic[Item]):
    """A thread with a queue. do: handles one item; may raise `Closing`; other errors are logged.

    capacity: of the queue; further items block their sender.
    """

    def __init__(
        self, name: str, do: Callable[[Item], None], retry: RetryPolicy, capacity: int, executor: Executor = THREADS
    ) -> None:
        self._name, self._do, self._retry, self._capacity = name, do, retry, capacity
        self._items: deque[Item] = deque()  # the current item is the first
        self._changed = executor.condition()
        self._under_way = 0  # how many of the items
        self._is_closed = False
        self._task = executor.spawn(name, self._run)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._items

    def put(self, item: Item, *, wait: bool = True) -> None:
        """Enqueue an item. wait=False ignores the capacity, for senders that must not block.

        Raises `Closing` when there was no room before the slot had to end.
        """
        with self._changed:
            while wait and len(self._items) >= self._capacity:
                if self._retry.is_closed:
                    raise Closing
                self._changed.wait(LOOK_SECONDS)
            self._items.append(item)
            self._changed.notify_all()

    def take_next(self, fits: Callable[[Item], bool], seconds: float) -> Item | None:
        """For `do`: the next item, if it comes in time and fits; it then counts as done with the current one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) > self._under_way, seconds)
            if len(self._items) <= self._under_way or not fits(self._items[self._under_way]):
                return None
            self._under_way += 1
            return self._items[self._under_way - 1]

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all items put before are done; whether they are in time."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: not self._items, seconds))

    def close(self) -> None:
        """Drop the waiting items, and wait only a moment for the current one."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        self._task.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._await_item():
            try:
                self._do(self._items[0])
            except Closing:
                logger.info("%s: ended before it was done", self._name)
            except Exception:
                logger.exception("%s: failed", self._name)
            self._finish_items()

    def _await_item(self) -> bool:
        """Wait for an item; False when the thread must end."""
        with self._changed:
            was_idle = not self._items
            self._changed.wait_for(lambda: self._items or self._is_closed)
            if was_idle:
                self._changed.wait_for(lambda: self._is_closed, YIELD_SECONDS)
            self._under_way = 1
            return bool(self._items)

    def _finish_items(self) -> None:
        with self._changed:
            for _ in range(min(self._under_way, len(self._items))):
                self._items.popleft()
            self._changed.notify_all()
