"""A thread that does one thing every so many seconds, and sooner when it is told to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from app.away import Away, LostRace

logger = logging.getLogger(__name__)


class Regularly:
    """do: whether there is nothing more to do for now; else it is done again at once. What is away is waited for."""

    def __init__(self, name: str, do: Callable[[], bool], seconds: float) -> None:
        self._name, self._do, self._seconds = name, do, seconds
        self._woken, self._is_closed, self._is_away = Flag(), False, False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do it now."""
        self._woken.set()

    def close(self) -> None:
        """What is under way is not waited for."""
        self._is_closed = True
        self._woken.set()

    def _run(self) -> None:
        is_done = False
        while not self._is_closed:
            if is_done:
                self._woken.wait(self._seconds)
            self._woken.clear()
            is_done = self._is_closed or self._once()

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
