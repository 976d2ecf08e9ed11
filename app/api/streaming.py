"""The events of studies as server-sent events: read and written out once for all who follow a study.

What was written out last is kept. Each follower has a place of its own in it, and takes from there; one that is further
behind, because it has just come or is slow, reads the log from its place on until it has caught up.

One look at the log for all who follow it: whoever waits for a stream is woken when it moved.
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
from app.outages import Away, LostRace
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
            batch = await run_in_threadpool(lambda: self._log.tail(after=position, limit=READ_AT_ONCE))
        except (Away, LostRace):
            return position
        moved = {stream for _, stream in batch}
        for watcher in self._watchers:
            if watcher.stream in moved:
                watcher.wake()
        return batch[-1][0] if batch else position


BATCH = 500
KEPT_BYTES = 2**18
"""Of each study that is followed."""

HEARTBEAT_SECONDS = 15.0
RECONNECT_MILLISECONDS = 2000


class Broadcast:
    """What happens in a study from the head of a feed on. Everything here happens in one event loop.

    begin, version: what came behind version `begin` of the stream is kept, as far as `version`. is_stopping: whether
    the server must end.
    """

    def __init__(self, feed: Feed, tail: Tail, is_stopping: Callable[[], bool]) -> None:
        self._feed, self._tail, self.is_stopping = feed.from_head(), tail, is_stopping
        self.begin = self.version = self._feed.version
        self._kept, self._bytes = deque[tuple[int, bytes]](), 0
        self._moved = asyncio.Event()
        self.followers = 0
        self.reading = asyncio.create_task(self._read())
        self.reading.add_done_callback(lambda _: self._wake())

    @property
    def end(self) -> str | None:
        """The state in which the study ended; None as long as more may come."""
        return self._feed.state if self._feed.is_over else None

    def since(self, version: int) -> bytes:
        """What came behind a version, which is `begin` or later."""
        return b"".join(text for at, text in self._kept if at > version)

    async def wait(self, version: int, seconds: float) -> bool:
        """Until there is more than this version, or nothing more is read; False after so many seconds."""
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
    """Those of the studies that somebody follows. is_stopping: whether the server must end."""

    def __init__(self, tail: Tail, is_stopping: Callable[[], bool]) -> None:
        self._tail, self._is_stopping = tail, is_stopping
        self._of = dict[StudyId, Broadcast]()

    async def follow(self, feed: Feed) -> AsyncIterator[bytes]:
        """The feed as server-sent events, until the study is over, which the event "end" says, or the server stops.

        When the database is away it ends: whoever follows comes back, and is told why.
        """
        yield f"retry: {RECONNECT_MILLISECONDS}\n".encode()
        with suppress(DatabaseUnavailable):
            async with self._joined(feed) as broadcast:
                async for text in _texts(feed, broadcast):
                    yield text

    @asynccontextmanager
    async def _joined(self, feed: Feed) -> AsyncIterator[Broadcast]:
        broadcast = self._of.get(feed.study)
        if broadcast is None or broadcast.reading.done():  # what was over may go on
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
            text, feed.version = broadcast.since(feed.version), broadcast.version
            if text:
                yield text
        elif broadcast.end is not None:
            yield format_sse_event(event="end", data_str=json.dumps({"state": broadcast.end}))
            return
        elif broadcast.reading.done():
            broadcast.reading.result()  # raises what went wrong
        elif not await broadcast.wait(feed.version, HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


def _format_events(batch: Sequence[StoredEvent], before: int) -> bytes:
    shown = [plans.event(recorded, before) for recorded in batch]
    return b"".join(format_sse_event(data_str=_one_line_json(event), id=str(event.position)) for event in shown)


def _one_line_json(event: Event) -> str:
    """In ASCII where there is other text: many clients take U+2028 and its like for the end of a line."""
    text = event.model_dump_json()
    return text if text.isascii() else json.dumps(event.to_json())
