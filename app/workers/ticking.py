"""When the scheduler looks: when it is told to, and by itself when nobody has told it for a while.

Beat may be dead, the broker away, or the wall clock, by which beat goes, have jumped. The clock here does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event as Flag
from threading import Lock, Thread

from app.away import Away, LostRace

logger = logging.getLogger(__name__)

LATE = 1.5
"""A tick that is so many periods late does not come from beat any more."""


class Ticking:
    """look: one tick. after: what is done now and then between two of them. seconds: how often to look at least."""

    def __init__(
        self,
        look: Callable[[], None],
        seconds: float,
        *,
        after: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._after, self._seconds, self._clock = look, after, seconds, clock
        self._looked_at = clock()
        self._lock, self._stopped, self._is_away = Lock(), Flag(), False
        self._thread = Thread(target=self._watch, name="ticking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is not waited for."""
        self._stopped.set()

    def tick(self) -> None:
        """Look now, after whoever is looking. What is away is said once, and looked at again later."""
        with self._lock:
            self._looked_at = self._clock()
            try:
                self._look()
            except (Away, LostRace) as problem:
                logger.log(logging.DEBUG if self._is_away else logging.WARNING, "the scheduler waits: %s", problem)
                self._is_away = True
            else:
                self._is_away = False

    def tick_if_late(self) -> None:
        """Look if nobody has looked for too long."""
        if self._clock() - self._looked_at > LATE * self._seconds:
            self.tick()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds / 4):
            try:
                self.tick_if_late()
                self._after()
            except Exception:  # this thread is what is left when all else fails: it goes on
                logger.exception("the scheduler could not look")
