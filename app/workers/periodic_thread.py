"""A thread that does one thing every so many seconds, and sooner when it is told to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from app.away import Away, LostRace

logger = logging.getLogger(__name__)


class PeriodicThread:
    """do: whether there is nothing more to do for now; else it is done again at once. What is away is waited for.

    rest: who wakes it waits for so many seconds, so that it is done once for all who do meanwhile.
    """

    def __init__(self, name: str, do: Callable[[], bool], seconds: float, rest: float = 0.0) -> None:
        self._name, self._do, self._seconds, self._rest = name, do, seconds, rest
        self._woken, self._closed, self._is_away = Flag(), Flag(), False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do it soon."""
        self._woken.set()

    def close(self) -> None:
        """What is under way is not waited for."""
        self._closed.set()
        self._woken.set()

    def join(self, seconds: float) -> bool:
        """Wait for its end after `close`; whether it has come in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_done = False
        while not self._closed.is_set():
            if is_done:
                self._woken.wait(self._seconds)
                self._closed.wait(self._rest)
            self._woken.clear()
            is_done = self._closed.is_set() or self._once()

    def _once(self) -> bool:
        try:
            is_done = self._do()
        except (Away, LostRace) as problem:
            logger.log(logging.DEBUG if self._is_away else logging.WARNING, "%s waits: %s", self._name, problem)
            self._is_away = True
            return True
        except Exception:  # it only tidies up: the process has more to do than this
            logger.exception("%s failed, and is tried again", self._name)
            return True
        self._is_away = False
        return is_done
