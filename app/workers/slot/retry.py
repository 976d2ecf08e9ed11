"""Runs on: any thread.

How long a slot waits for what is away, forever, but not once it is to close; and what people are told meanwhile.

Moments and durations, which are different things; and a slot's time, divided among what it trains at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NewType

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
    def is_over(self) -> bool:
        return self._closed.is_set()

    def pause(self, seconds: float) -> None:
        """Raises `Closing`."""
        self._wait(seconds)
        if self.is_over:
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

    def of(self, member: int) -> Seconds:
        """The seconds that one has taken so far; they pass the slower the more lanes there are."""
        self._settle()
        return Seconds(self._seconds[member])

    @contextmanager
    def charged_to(self, payers: Collection[int]) -> Iterator[None]:
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
