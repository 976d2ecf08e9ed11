"""Server-sent events of studies, read and formatted once for all followers of a study.

The latest events stay in a buffer, in which each follower has its own position. A follower that is further behind,
since it is new or slow, reads the log itself until it has caught up. One task polls the log for all streams, and wakes
the watchers of streams with new events.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.concurrency import run_in_threadpool

from app.domain.terms import StudyId
from app.events import DatabaseUnavailable, EventLog, StoredEvent
from app.outages import LostRace, Unavailable
from app.service.views import plans
from app.service.views.plans import Feed
from stagetree.models.service import Event

POLL_SECONDS = 0.2
READ_AT_ONCE = 1000


class Watcher:
    """Waits for one stream."""

    def __init__(self, stream: str) -> None:
        self.stream, self._moved = stream, asyncio.Event()

    def wake(self) -> None:
        self._moved.set()

    async def wait(self, seconds: float) -> None:
        """Wait until the stream may have new events, at most `seconds`."""
        try:
            await asyncio.wait_for(self._moved.wait(), seconds)
        except TimeoutError:
            return
        self._moved.clear()


class Tail:
    """Polls the log while there are watchers. is_over: whether the server stops. Lives in one event loop."""

    def __init__(self, log: EventLog, is_over: Callable[[], bool]) -> None:
        self._log, self._is_over = log, is_over
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, stream: str) -> AsyncIterator[Watcher]:
        """A watcher that new events of the stream wake. Raises `DatabaseUnavailable`."""
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
        """Wake the watchers of streams with events after `position`; the last position seen."""
        try:
            batch = await run_in_threadpool(lambda: self._log.tail(after=position, limit=READ_AT_ONCE))
        except (Unavailable, LostRace):
            return position
        moved = {stream for _, stream in batch}
        for watcher in self._watchers:
            if watcher.stream in moved:
                watcher.wake()
        return batch[-1][0] if batch else position


BATCH = 500
KEPT_BYTES = 2**18
"""The buffer of each followed study."""

HEARTBEAT_SECONDS = 15.0
RECONNECT_MILLISECONDS = 2000


class Broadcast:
    """The live events of a study, from a feed's head on. Lives in one event loop.

    begin, version: the buffer has the events after version `begin` of the stream, up to `version`. is_stopping: whether
    the server stops.
    """

    def __init__(self, feed: Feed, tail: Tail, is_stopping: Callable[[], bool]) -> None:
        self._feed, self._tail, self.is_stopping = feed.copy_at_head(), tail, is_stopping
        self.begin = self.version = self._feed.version
        self._kept, self._bytes = deque[tuple[int, bytes]](), 0
        self._moved = asyncio.Event()
        self.followers = 0
        self.reading = asyncio.create_task(self._read())
        self.reading.add_done_callback(lambda _: self._wake())

    @property
    def end(self) -> str | None:
        """The study's final state; None while more events may come."""
        return self._feed.state if self._feed.is_over else None

    def texts_after(self, version: int) -> bytes:
        """The events after a version, which is `begin` or later."""
        return b"".join(text for at, text in self._kept if at > version)

    async def wait(self, version: int, seconds: float) -> bool:
        """Wait for events after this version or for the end of the reading; False after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.version <= version and not self.reading.done():
                    await self._moved.wait()
                return True
        return False

    async def _read(self) -> None:
        feed = self._feed
        async with self._tail.watching(feed.stream) as watcher:
            while not (feed.is_over or self.is_stopping()):
                before, batch = feed.version, await run_in_threadpool(feed.read, BATCH)
                self._keep(batch)
                if feed.version == before and not feed.is_final:
                    await watcher.wait(HEARTBEAT_SECONDS)

    def _keep(self, batch: Sequence[StoredEvent]) -> None:
        for recorded in batch:
            text = _format_events([recorded], self._feed.before)
            self._kept.append((recorded.version, text))
            self._bytes += len(text)
        while self._bytes > KEPT_BYTES:
            self.begin, text = self._kept.popleft()
            self._bytes -= len(text)
        self.version = self._feed.version
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


class Broadcasts:
    """The broadcasts of followed studies. is_stopping: whether the server stops."""

    def __init__(self, tail: Tail, is_stopping: Callable[[], bool]) -> None:
        self._tail, self._is_stopping = tail, is_stopping
        self._of = dict[StudyId, Broadcast]()

    async def follow(self, feed: Feed) -> AsyncIterator[bytes]:
        """The feed as server-sent events, until the server stops or the study is over, which sends the event "end".

        It also ends when the database is unavailable. Clients reconnect, and get the reason.
        """
        yield f"retry: {RECONNECT_MILLISECONDS}\n".encode()
        with suppress(DatabaseUnavailable):
            async with self._join(feed) as broadcast:
                async for text in _texts(feed, broadcast):
                    yield text

    @asynccontextmanager
    async def _join(self, feed: Feed) -> AsyncIterator[Broadcast]:
        broadcast = self._of.get(feed.study)
        if broadcast is None or broadcast.reading.done():  # a study that was over may have been reopened
            broadcast = self._of[feed.study] = Broadcast(feed, self._tail, self._is_stopping)
        broadcast.followers += 1
        try:
            yield broadcast
        finally:
            broadcast.followers -= 1
            if not broadcast.followers:
                broadcast.reading.cancel()
                if self._of.get(feed.study) is broadcast:
                    del self._of[feed.study]


async def _texts(feed: Feed, broadcast: Broadcast) -> AsyncIterator[bytes]:
    while not broadcast.is_stopping():
        if feed.version < broadcast.begin:
            if batch := await run_in_threadpool(feed.read, BATCH):
                yield _format_events(batch, feed.before)
        elif feed.version < broadcast.version:
            text, feed.version = broadcast.texts_after(feed.version), broadcast.version
            if text:
                yield text
        elif broadcast.end is not None:
            yield format_sse_event(event="end", data_str=json.dumps({"state": broadcast.end}))
            return
        elif broadcast.reading.done():
            broadcast.reading.result()  # raises its error
        elif not await broadcast.wait(feed.version, HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


def _format_events(batch: Sequence[StoredEvent], before: int) -> bytes:
    shown = [plans.event(recorded, before) for recorded in batch]
    return b"".join(format_sse_event(data_str=_one_line_json(event), id=str(event.position)) for event in shown)


def _one_line_json(event: Event) -> str:
    """JSON on one line, in ASCII: many clients take U+2028 and similar characters for the end of a line."""
    text = event.model_dump_json()
    return text if text.isascii() else json.dumps(event.to_json())
