"""Tells the scheduler that something happened, without making anybody wait for the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0


class Notifier:
    """Calls `tell` on a thread of its own after each `notify`; what comes while it does so is one more call."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self._asked, self._is_closed = tell, Flag(), False
        self._thread = Thread(target=self._work, name="notifier", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Returns at once."""
        self._asked.set()

    def close(self) -> None:
        """Tell once more, and end; a broker that is away is not waited for."""
        self._is_closed = True
        self._asked.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait()
            self._asked.clear()
            is_last = self._is_closed  # before it tells: what is noted while it does is told of once more
            try:
                self._tell()
            except Exception:  # whatever it is, the next one is told; what is missed, the next regular tick sees
                logger.exception("the scheduler could not be told")
