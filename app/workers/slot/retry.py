"""Runs on: any thread.

How long a slot waits for what is away, forever, but not once it is to close; and what people are told meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

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
