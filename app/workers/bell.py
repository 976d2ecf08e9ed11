"""Tells the scheduler that something happened, without making the training wait for the broker."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

CLOSE_SECONDS = 2.0


class Bell:
    """Calls `ring` on a thread of its own after each `pull`; pulls while it is ringing are one more ring."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring, self._pulled, self._closed = ring, Flag(), False
        self._thread = Thread(target=self._wait, name="bell", daemon=True)
        self._thread.start()

    def pull(self) -> None:
        self._pulled.set()

    def close(self) -> None:
        """Ring once more, and end; a broker that is away is not waited for."""
        self._closed = True
        self._pulled.set()
        self._thread.join(CLOSE_SECONDS)

    def _wait(self) -> None:
        while not self._closed:
            self._pulled.wait()
            self._pulled.clear()
            self._ring()
