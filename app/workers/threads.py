"""Runs on: the ticking thread, the retention thread and the notifier's thread, which it makes.

What a worker's process does beside its tasks: again and again, not too often, or without anybody waiting for it.

How it does so is an `Executor`'s: threads in production; in the simulated world, steps that one seed puts in order.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from app.outages import LostRace, Unavailable

logger = logging.getLogger(__name__)

LATE_PERIODS = 1.5
"""A tick that is so many periods late does not come from beat any more."""

CLOSE_SECONDS = 2.0
"""How long the last message to the scheduler is waited for."""


class Flag(Protocol):
    """As `threading.Event`."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ConditionVariable(AbstractContextManager[object], Protocol):
    """As `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object: ...
    def notify_all(self) -> None: ...


class Task(Protocol):
    """As `threading.Thread`, once it was started."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Executor(ABC):
    """Runs the parts of a process beside each other, and makes the means by which they wait."""

    @abstractmethod
    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        """Do it beside everything else. The process may end without it."""

    @abstractmethod
    def now(self) -> float:
        """Seconds, by the clock of its waits. It does not go back."""

    @abstractmethod
    def flag(self) -> Flag: ...

    @abstractmethod
    def condition(self) -> ConditionVariable: ...

    @abstractmethod
    def lock(self) -> AbstractContextManager[object]:
        """For a block that may wait, as for a database; locks that are held for a moment are the interpreter's own."""


class Threads(Executor):
    """Threads of this process."""

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def now(self) -> float:
        return time.monotonic()

    def flag(self) -> Flag:
        return threading.Event()

    def condition(self) -> ConditionVariable:
        return threading.Condition()

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()


THREADS = Threads()


class PeriodicThread:
    """Does one thing every so many seconds, and sooner when it is told to.

    do: whether there is nothing more to do for now; else it is done again at once. What is away is waited for.

    rest: who wakes it waits for so many seconds, so that it is done once for all who do meanwhile.
    """

    def __init__(
        self, name: str, do: Callable[[], bool], seconds: float, rest: float = 0.0, executor: Executor = THREADS
    ) -> None:
        self._name, self._do, self._seconds, self._rest = name, do, seconds, rest
        self._executor = executor
        self._task: Task | None = None
        self._woken, self._closed, self._is_away = executor.flag(), executor.flag(), False

    def start(self) -> None:
        self._task = self._executor.spawn(self._name, self._run)

    def wake(self) -> None:
        """Do it soon."""
        self._woken.set()

    def close(self) -> None:
        """What is under way is not waited for."""
        self._closed.set()
        self._woken.set()

    def join(self, seconds: float) -> bool:
        """Wait for its end after `close`; whether it has come in time."""
        if self._task is None:
            return True
        self._task.join(seconds)
        return not self._task.is_alive()

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
        except (Unavailable, LostRace) as problem:
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
        executor: Executor = THREADS,
    ) -> None:
        self._look, self._after, self._seconds, self._clock = look, after, seconds, clock
        self._looked_at, self._executor = clock(), executor
        self._lock, self._stopped, self._is_away = executor.lock(), executor.flag(), False

    def start(self) -> None:
        self._executor.spawn("ticking", self._watch)

    def close(self) -> None:
        """What is under way is not waited for."""
        self._stopped.set()

    def tick(self) -> None:
        """Look now, after whoever is looking. What is away is said once, and looked at again later."""
        with self._lock:
            self._looked_at = self._clock()
            try:
                self._look()
            except (Unavailable, LostRace) as problem:
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
            except (Unavailable, LostRace) as problem:  # each tick says whether that is so
                logger.debug("what is done after ticks waits: %s", problem)
            except Exception:  # this thread is what is left when all else fails: it goes on
                logger.exception("the scheduler could not look")


class RateLimit:
    """Something that is done not more often than every so many seconds.

    do: may raise; then it is due again at once. clock: any that does not go back."""

    def __init__(self, seconds: float, do: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
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

    def __init__(self, tell: Callable[[], None], executor: Executor = THREADS) -> None:
        self._tell, self._asked, self._is_closed = tell, executor.flag(), False
        self._task = executor.spawn("notifier", self._work)

    def notify(self) -> None:
        """Returns at once."""
        self._asked.set()

    def close(self) -> None:
        """Tell once more, and end; a broker that is away is not waited for."""
        self._is_closed = True
        self._asked.set()
        self._task.join(CLOSE_SECONDS)

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
