"""The helper threads of a worker's process: periodic work, the tick loop, and messages that must not block their
sender.

An `Executor` runs them: threads in production; in the simulated world, steps in an order that one seed decides.

Runs on: the ticking thread, the retention thread and the notifier's thread, which it starts.
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
"""A tick that is this many periods late no longer comes from beat."""

CLOSE_SECONDS = 2.0
"""How long `close` waits for the last message to the scheduler."""


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
    """Runs the threads of a process and makes their synchronization primitives."""

    @abstractmethod
    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        """Run it in the background. The process may end without it."""

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds, by the clock of its waits."""

    @abstractmethod
    def flag(self) -> Flag: ...

    @abstractmethod
    def condition(self) -> ConditionVariable: ...

    @abstractmethod
    def lock(self) -> AbstractContextManager[object]:
        """For blocks that may wait, as for a database. Locks held only for a moment are plain `threading.Lock`."""


class Threads(Executor):
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
    """Runs `do` every `seconds`, and sooner after `wake`. An outage is waited for.

    do: returns whether nothing is left for now; otherwise it runs again at once.
    rest: seconds between `wake` and the run, so that several wake-ups share one.
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
        """Run soon."""
        self._woken.set()

    def close(self) -> None:
        """Does not wait for the run under way."""
        self._closed.set()
        self._woken.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end after `close`, and return whether it came in time."""
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
            is_done = self._closed.is_set() or self._run_once()

    def _run_once(self) -> bool:
        try:
            is_done = self._do()
        except (Unavailable, LostRace) as problem:
            logger.log(logging.DEBUG if self._is_away else logging.WARNING, "%s waits: %s", self._name, problem)
            self._is_away = True
            return True
        except Exception:  # tidying up must not end the process
            logger.exception("%s failed, and is tried again", self._name)
            return True
        self._is_away = False
        return is_done


class TickLoop:
    """Runs a tick on request, and by itself when the last request was too long ago.

    Beat may be dead, the broker unavailable, or the wall clock, which beat uses, may have jumped. This clock is
    monotonic.

    look: one tick.
    after: called between ticks.
    seconds: the longest time between two ticks.
    """

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
        """Does not wait for the tick under way."""
        self._stopped.set()

    def tick(self) -> None:
        """Tick now, after any tick under way. An outage is logged once, and the next tick tries again."""
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
        """Tick if the last one was too long ago."""
        if self._clock() - self._looked_at > LATE_PERIODS * self._seconds:
            self.tick()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds / 4):
            try:
                self.tick_if_late()
                self._after()
            except (Unavailable, LostRace) as problem:  # each tick logs it
                logger.debug("the work after ticks waits: %s", problem)
            except Exception:  # the last resort when all else fails must continue
                logger.exception("the scheduler could not tick")


class RateLimit:
    """Limits how often something runs.

    do: may raise; then it is due again at once.
    clock: monotonic.
    """

    def __init__(self, seconds: float, do: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._do, self._clock = seconds, do, clock
        self._done_at: float | None = None

    def do_if_due(self) -> None:
        """Run it if it is due. The first call always runs it."""
        if self._done_at is None or self._clock() - self._done_at >= self._seconds:
            self._do()
            self._done_at = self._clock()


class Notifier:
    """Wakes the scheduler without making the caller wait for the broker.

    Calls `tell` on its own thread after each `notify`; notifications during a call lead to one more call.
    """

    def __init__(self, tell: Callable[[], None], executor: Executor = THREADS) -> None:
        self._tell, self._asked, self._is_closed = tell, executor.flag(), False
        self._task = executor.spawn("notifier", self._work)

    def notify(self) -> None:
        """Returns at once."""
        self._asked.set()

    def close(self) -> None:
        """Tell once more, and end. Does not wait for an unavailable broker."""
        self._is_closed = True
        self._asked.set()
        self._task.join(CLOSE_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait()
            self._asked.clear()
            is_last = self._is_closed  # read before telling: a later notification needs another call
            try:
                self._tell()
            except Exception:  # the next notification tries again; the next regular tick finds the rest
                logger.exception("the scheduler could not be woken")
