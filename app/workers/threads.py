"""Runs on: the ticking thread, the retention thread and the notifier's thread, which it makes.

What a worker's process does beside its tasks: again and again, not too often, or without anybody waiting for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event as Flag
from threading import Lock, Thread

from app.away import Away, LostRace

logger = logging.getLogger(__name__)

LATE_PERIODS = 1.5
"""A tick that is so many periods late does not come from beat any more."""

CLOSE_SECONDS = 2.0
"""How long the last message to the scheduler is waited for."""


class PeriodicThread:
    """Does one thing every so many seconds, and sooner when it is told to.

    do: whether there is nothing more to do for now; else it is done again at once. What is away is waited for.

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


class TickLoop:
    """When the scheduler looks: when it is told to, and by itself when nobody has told it for a while.

    Beat may be dead, the broker away, or the wall clock, by which beat goes, have jumped. The clock here does not.

    look: one tick. after: what is done now and then between two of them. seconds: how often to look at least."""

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
        if self._clock() - self._looked_at > LATE_PERIODS * self._seconds:
            self.tick()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds / 4):
            try:
                self.tick_if_late()
                self._after()
            except Exception:  # this thread is what is left when all else fails: it goes on
                logger.exception("the scheduler could not look")


class RateLimit:
    """Something that is done not more often than every so many seconds.

    do: may raise; then it is due again at once. clock: any that does not go back."""

    def __init__(self, seconds: float, do: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._do, self._clock = seconds, do, clock
        self._done_at: float | None = None

    def do_if_due(self) -> None:
        """Do it, the first time too."""
        if self._done_at is None or self._clock() - self._done_at >= self._seconds:
            self._do()
            self._done_at = self._clock()


class Notifier:
    """Tells the scheduler that something happened, without making anybody wait for the broker.

    Calls `tell` on a thread of its own after each `notify`; what comes while it does so is one more call."""

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
