"""Virtual time, and an executor for the processes of a simulated world: one thing at a time, in the order of a seed.

The threads of a process are fibers, beside its tasks. One of them runs until it waits; then the one runs
that is due next, and among several that are due at one moment a random one. So one seed is one history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

from greenlet import getcurrent, greenlet

from app.workers.threads import ConditionVariable, Executor, Flag, Task


class Killed(BaseException):
    """The process of a fiber was killed: its further actions have no effect."""


class Time:
    """now: virtual seconds. `run` lets the fibers run; a fiber calls all the others."""

    def __init__(self, chance: Random) -> None:
        self.now, self.chance = 0.0, chance
        self._due: list[tuple[float, float, int, Fiber, int]] = []
        self.hub, self._numbers = getcurrent(), 0

    def clock(self) -> float:
        return self.now

    def run(self, until: float) -> None:
        """Until nothing is left to happen before that moment. Raises what a fiber raises."""
        self.hub, due = getcurrent(), self._due
        while due and due[0][0] <= until:
            at, _, _, fiber, turn = heapq.heappop(due)
            if fiber.turn == turn and not fiber.dead:
                self.now = at
                fiber.switch()
        self.now = max(self.now, until)

    def wake(self, fiber: Fiber, after: float = 0.0) -> None:
        """It continues then, unless something wakes it sooner."""
        self._numbers += 1
        heapq.heappush(self._due, (self.now + after, self.chance.random(), self._numbers, fiber, fiber.turn))

    def wait(self, seconds: float | None) -> None:
        """This fiber waits until it is woken, or for this long. Raises `Killed`."""
        me = getcurrent()
        assert isinstance(me, Fiber), "only a fiber can wait"
        process = me.process
        if process.is_dead or self.now < process.paused_until:
            me.check()
        if seconds is not None:
            self.wake(me, seconds if seconds > 0.0 else 0.0)
        self.hub.switch()
        me.turn += 1
        if process.is_dead or self.now < process.paused_until:
            me.check()


class Process:
    """What dies at once. is_fork_alone: whether its worker lives on, and forks another one."""

    def __init__(self, name: str, time: Time) -> None:
        self.name, self.time, self.is_dead, self.is_fork_alone = name, time, False, False
        self.paused_until = 0.0
        self.fibers: list[Fiber] = []

    def kill(self) -> None:
        """Each of its fibers ends where it stands; the one that calls this, by `Killed`, at its next wait."""
        self.is_dead = True
        for fiber in self.fibers:
            if fiber.is_alive() and fiber is not getcurrent():
                self.time.wake(fiber)

    def pause(self, seconds: float) -> None:
        """As SIGSTOP: it continues later, through all other events."""
        self.paused_until = self.time.now + seconds


class Fiber(greenlet):
    """One thread of a process. turn: how often it has run, so that an old appointment wakes no fiber."""

    def __init__(self, process: Process, name: str, do: Callable[[], None]) -> None:
        super().__init__(self._run_it)
        self.process, self.name, self._do, self.turn = process, name, do, 0
        self._ended: list[Fiber] = []

    def is_alive(self) -> bool:
        return not self.dead

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            waiter = getcurrent()
            assert isinstance(waiter, Fiber)
            self._ended.append(waiter)
            self.process.time.wait(timeout)

    def check(self) -> None:
        """Raises `Killed` if its process is dead, and waits while that is paused."""
        process = self.process
        while not process.is_dead and process.time.now < process.paused_until:
            process.time.wake(self, process.paused_until - process.time.now)
            process.time.hub.switch()
            self.turn += 1
        if process.is_dead:
            raise Killed

    def _run_it(self) -> None:
        try:
            self.check()
            self._do()
        except Killed:
            pass
        for waiter in self._ended:
            self.process.time.wake(waiter)


class _Waiters:
    """The fibers that wait for one thing."""

    def __init__(self, time: Time) -> None:
        self._time, self._waiting = time, list[Fiber]()

    def wait(self, is_there: Callable[[], object], timeout: float | None) -> bool:
        until = None if timeout is None else self._time.now + timeout
        while not is_there():
            if until is not None and self._time.now >= until:
                return False
            me = getcurrent()
            assert isinstance(me, Fiber)
            self._waiting.append(me)
            try:
                self._time.wait(None if until is None else until - self._time.now)
            finally:
                self._waiting.remove(me)
        return True

    def wake_all(self) -> None:
        for fiber in self._waiting:
            self._time.wake(fiber)


class _Flag(_Waiters):
    _is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.wake_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        return super().wait(self.is_set, timeout)


class _Condition:
    def __init__(self, time: Time) -> None:
        self._waiters, self._notes = _Waiters(time), 0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *raised: object) -> None:
        """No other fiber ran within the block except where it waited."""

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notes
        return self._waiters.wait(lambda: self._notes != before, timeout)

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        return self._waiters.wait(predicate, timeout)

    def notify_all(self) -> None:
        self._notes += 1
        self._waiters.wake_all()


class Fibers(Executor):
    """The fibers of one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._time = process, process.time

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        fiber = Fiber(self._process, name, run)
        fiber.parent = self._time.hub
        self._process.fibers.append(fiber)
        self._time.wake(fiber)
        return fiber

    def now(self) -> float:
        return self._time.now

    def flag(self) -> Flag:
        return _Flag(self._time)

    def condition(self) -> ConditionVariable:
        return _Condition(self._time)  # type: ignore[return-value]

    def lock(self) -> AbstractContextManager[object]:
        waiters, held = _Waiters(self._time), [False]

        class Lock:
            def __enter__(self) -> None:
                waiters.wait(lambda: not held[0], None)
                held[0] = True

            def __exit__(self, *raised: object) -> None:
                held[0] = False
                waiters.wake_all()

        return Lock()  # type: ignore[return-value]
