"""Retries, waits and moments of a slot's threads. Retries are unlimited during outages, until the slot must close.

Runs on: any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NewType

from app.workers.threads import THREADS, Executor
from stagetree.backoff import Backoff

Instant = NewType("Instant", float)
"""Monotonic seconds; only comparable within one clock."""

Seconds = NewType("Seconds", float)
"""A duration."""

Clock = Callable[[], Instant]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds after the first attempt, and the longest pause after many."""


def monotonic() -> Instant:
    return Instant(time.monotonic())


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
