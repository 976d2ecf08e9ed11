"""Runs on: the saver's thread and the outbox's, which it makes; `put` and `drain` on others.

A thread that does one thing after the other, in the order in which they were given to it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from app.workers.slot.retry import Closing, RetryPolicy
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often whoever waits for room looks whether the slot must end."""
YIELD_SECONDS = 0.006
"""What comes to an idle thread waits so long. Threads share one lock of the interpreter, and who brought it has a
message to send that begins the next stage: that one goes first."""

CLOSE_SECONDS = 1.0
"""Whoever waits stops at once; a call to a server that does not answer must not hold up the process."""

Item = TypeVar("Item")


class WorkerThread(Generic[Item]):
    """do: what to do with each thing; `Closing` that it raises is understood, other errors are logged.

    capacity: as many may wait; who brings one more waits, too.
    """

    def __init__(
        self, name: str, do: Callable[[Item], None], retry: RetryPolicy, capacity: int, executor: Executor = THREADS
    ) -> None:
        self._name, self._do, self._retry, self._capacity = name, do, retry, capacity
        self._items: deque[Item] = deque()  # what is under way is the first of them
        self._changed = executor.condition()
        self._under_way = 0  # how many of the items
        self._is_closed = False
        self._task = executor.spawn(name, self._run)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._items

    def put(self, item: Item, *, wait: bool = True) -> None:
        """To be done after all that came before. wait=False: whatever the capacity, for who must not wait here.

        Raises `Closing` when there was no room before the slot had to end.
        """
        with self._changed:
            while wait and len(self._items) >= self._capacity:
                if self._retry.is_over:
                    raise Closing
                self._changed.wait(LOOK_SECONDS)
            self._items.append(item)
            self._changed.notify_all()

    def take_next(self, fits: Callable[[Item], bool], seconds: float) -> Item | None:
        """For `do`: what follows the thing under way, if it comes in time and fits; it is then done with that one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) > self._under_way, seconds)
            if len(self._items) <= self._under_way or not fits(self._items[self._under_way]):
                return None
            self._under_way += 1
            return self._items[self._under_way - 1]

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until everything is done that was given so far, or for so many seconds; whether all is done."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: not self._items, seconds))

    def close(self) -> None:
        """What is not begun is not done any more; what is under way is not waited for longer than a moment."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        self._task.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._await_item():
            try:
                self._do(self._items[0])
            except Closing:
                logger.info("%s: ended before it was done", self._name)
            except Exception:
                logger.exception("%s: failed", self._name)
            self._done()

    def _await_item(self) -> bool:
        """Whether there is something to do; False when the thread must end."""
        with self._changed:
            was_idle = not self._items
            self._changed.wait_for(lambda: self._items or self._is_closed)
            if was_idle:
                self._changed.wait_for(lambda: self._is_closed, YIELD_SECONDS)
            self._under_way = 1
            return bool(self._items)

    def _done(self) -> None:
        with self._changed:
            for _ in range(min(self._under_way, len(self._items))):
                self._items.popleft()
            self._changed.notify_all()
