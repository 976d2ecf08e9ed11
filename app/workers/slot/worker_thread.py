"""A slot's thread with a queue of items.

Runs on: any thread; the items are handled on its own, such as the outbox's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.workers.slot.retry import Closing, RetryPolicy
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a blocked `put` checks whether the slot must end."""
YIELD_SECONDS = 0.006
"""An idle thread waits this long before a new item. Threads share the interpreter lock, and the item's sender must
first send the message of the next stage.
"""

CLOSE_SECONDS = 1.0
"""All waits end at once; a call to a silent server must not delay the process's end."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Backlog:
    """items: waiting, with the one under way. done: how many were before."""

    items: int
    done: int


class WorkerThread(Generic[Item]):
    """A thread with a queue. do: handles one item; may raise `Closing`; other errors are logged.

    capacity: of the queue; further items block their sender.
    """

    def __init__(
        self, name: str, do: Callable[[Item], None], retry: RetryPolicy, capacity: int, executor: Executor = THREADS
    ) -> None:
        self._name, self._do, self._retry, self._capacity = name, do, retry, capacity
        self._items: deque[Item] = deque()  # the current item is the first
        self._changed = executor.condition()
        self._under_way = 0  # how many of the items
        self._done = 0  # how many items
        self._is_closed = False
        self._task = executor.spawn(name, self._run)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._items

    @property
    def backlog(self) -> Backlog:
        with self._changed:
            return Backlog(len(self._items), self._done)

    def put(self, item: Item, *, wait: bool = True) -> None:
        """Enqueue an item. wait=False ignores the capacity, for senders that must not block.

        Raises `Closing` when there was no room before the slot had to end.
        """
        with self._changed:
            while wait and len(self._items) >= self._capacity:
                if self._retry.is_closed:
                    raise Closing
                self._changed.wait(LOOK_SECONDS)
            self._items.append(item)
            self._changed.notify_all()

    def take_next(self, fits: Callable[[Item], bool], seconds: float) -> Item | None:
        """For `do`: the next item, if it comes in time and fits; it then counts as done with the current one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) > self._under_way, seconds)
            if len(self._items) <= self._under_way or not fits(self._items[self._under_way]):
                return None
            self._under_way += 1
            return self._items[self._under_way - 1]

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all items put before are done, and return whether they are in time."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: not self._items, seconds))

    def close(self) -> None:
        """Drop the waiting items, and wait only a moment for the current one."""
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
            self._finish_items()

    def _await_item(self) -> bool:
        """Wait for an item; False when the thread must end."""
        with self._changed:
            was_idle = not self._items
            self._changed.wait_for(lambda: self._items or self._is_closed)
            if was_idle:
                self._changed.wait_for(lambda: self._is_closed, YIELD_SECONDS)
            self._under_way = 1
            return bool(self._items)

    def _finish_items(self) -> None:
        with self._changed:
            for _ in range(min(self._under_way, len(self._items))):
                self._items.popleft()
                self._done += 1
            self._changed.notify_all()
