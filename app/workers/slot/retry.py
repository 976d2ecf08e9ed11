"""Runs on: any thread.

How a slot's threads do one thing after the other, how long they wait for a server that is away (forever, but not once
the slot must close), and the sentence that people read meanwhile.

Moments and durations, which are different things; and a slot's time, divided among what it trains at once.
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
"""Seconds between the first two tries, and between those after many."""


class Closing(Exception):
    """The slot must end, and waits for nothing any more."""


class RetryPolicy:
    """Shared by the threads of a slot. wait: takes so many seconds, or fewer if the slot must end meanwhile."""

    def __init__(self, wait: Callable[[float], object] | None = None, executor: Executor = THREADS) -> None:
        self._closed = executor.flag()
        self._wait = wait or self._closed.wait

    def close(self) -> None:
        """Whoever waits stops waiting."""
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
        """1, 2, 3, ..., with a pause before each but the first, longer each time. Raises `Closing`."""
        return Backoff(FIRST_PAUSE, LONGEST_PAUSE, spread=0.0).attempts(wait=self.pause)


class SlotStatus:
    """What a slot waits for, or is unwell with, in words: at most one note of each source. For its row, where people
    look. Safe to share between threads."""

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
"""A moment: seconds by a clock that does not go back. Only two moments of one clock can be compared."""

Seconds = NewType("Seconds", float)
"""How long something took."""

Clock = Callable[[], Instant]


def monotonic() -> Instant:
    return Instant(time.monotonic())


class SharedTime:
    """What each lane of a group took of the slot's time: all of them together took what passed.

    What nobody is charged for is divided among all who were ever there.
    """

    def __init__(self, clock: Clock, members: Collection[int]) -> None:
        self._clock, self._at = clock, clock()
        self._seconds = dict.fromkeys(members, 0.0)
        self._payers: Collection[int] = members

    def seconds_of(self, member: int) -> Seconds:
        """The seconds that one has taken so far; they pass the slower the more lanes there are."""
        self._settle()
        return Seconds(self._seconds[member])

    @contextmanager
    def charge(self, payers: Collection[int]) -> Iterator[None]:
        """What passes meanwhile is for these."""
        self._settle()
        before, self._payers = self._payers, payers
        try:
            yield
        finally:
            self._settle()
            self._payers = before

    def leave(self, member: int) -> None:
        """What passes from here on is for the others."""
        self._settle()
        self._payers = [payer for payer in self._payers if payer != member]

    def _settle(self) -> None:
        before, self._at = self._at, self._clock()
        for payer in self._payers:
            self._seconds[payer] += (self._at - before) / len(self._payers)


logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often whoever waits for room looks whether the slot must end."""
YIELD_SECONDS = 0.006
"""What comes to an idle thread waits so long. Threads share one lock of the interpreter, and who brought it has a
message to send that begins the next stage: that one goes first."""

CLOSE_SECONDS = 1.0
"""Whoever waits stops at once; a call to a server that does not answer must not hold up the process."""

Item = TypeVar("Item")


class WorkerThread(Generic[Item]):
    """do: what to do with each thing; `Closing` that it raises is understood, other errors are logged.

    capacity: as many may wait; who brings one more waits, too.
    """

    def __init__(
        self, name: str, do: Callable[[Item], None], retry: RetryPolicy, capacity: int, executor: Executor = THREADS
    ) -> None:
        self._name, self._do, self._retry, self._capacity = name, do, retry, capacity
        self._items: deque[Item] = deque()  # what is under way is the first of them
        self._changed = executor.condition()
        self._under_way = 0  # how many of the items
        self._is_closed = False
        self._task = executor.spawn(name, self._run)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._items

    def put(self, item: Item, *, wait: bool = True) -> None:
        """To be done after all that came before. wait=False: whatever the capacity, for who must not wait here.

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
        """For `do`: what follows the thing under way, if it comes in time and fits; it is then done with that one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) > self._under_way, seconds)
            if len(self._items) <= self._under_way or not fits(self._items[self._under_way]):
                return None
            self._under_way += 1
            return self._items[self._under_way - 1]

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until everything is done that was given so far, or for so many seconds; whether all is done."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: not self._items, seconds))

    def close(self) -> None:
        """What is not begun is not done any more; what is under way is not waited for longer than a moment."""
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
            self._done()

    def _await_item(self) -> bool:
        """Whether there is something to do; False when the thread must end."""
        with self._changed:
            was_idle = not self._items
            self._changed.wait_for(lambda: self._items or self._is_closed)
            if was_idle:
                self._changed.wait_for(lambda: self._is_closed, YIELD_SECONDS)
            self._under_way = 1
            return bool(self._items)

    def _done(self) -> None:
        with self._changed:
            for _ in range(min(self._under_way, len(self._items))):
                self._items.popleft()
            self._changed.notify_all()
