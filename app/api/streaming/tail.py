"""One look at the log for all who follow it: whoever waits for a stream is woken when it moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool

from app.away import Away, LostRace
from app.events.log import EventLog

POLL_SECONDS = 0.2
BATCH = 1000


class Watcher:
    """Waits for one stream."""

    def __init__(self, stream: str) -> None:
        self.stream, self._moved = stream, asyncio.Event()

    def wake(self) -> None:
        self._moved.set()

    async def wait(self, seconds: float) -> None:
        """Until the stream may have moved since the last time, or for so many seconds."""
        try:
            await asyncio.wait_for(self._moved.wait(), seconds)
        except TimeoutError:
            return
        self._moved.clear()


class Tail:
    """Follows the positions of the log as long as somebody watches. is_over: whether the server must end.

    Everything here happens in one event loop.
    """

    def __init__(self, log: EventLog, is_over: Callable[[], bool]) -> None:
        self._log, self._is_over = log, is_over
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, stream: str) -> AsyncIterator[Watcher]:
        """What is appended to the stream from here on wakes the watcher. Raises `DatabaseUnavailable`."""
        watcher = Watcher(stream)
        if self._task is None:
            head = await run_in_threadpool(self._log.head)
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._follow(head))
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def _follow(self, position: int) -> None:
        while self._watchers and not self._is_over():
            await asyncio.sleep(POLL_SECONDS)
            position = await self._look(position)
        self._task = None
        for watcher in self._watchers:
            watcher.wake()

    async def _look(self, position: int) -> int:
        """Wake whose stream moved behind `position`; the last position that was seen."""
        try:
            batch = await run_in_threadpool(lambda: self._log.tail(after=position, limit=BATCH))
        except (Away, LostRace):
            return position
        moved = {stream for _, stream in batch}
        for watcher in self._watchers:
            if watcher.stream in moved:
                watcher.wake()
        return batch[-1][0] if batch else position
