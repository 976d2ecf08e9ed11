"""One poll of the log serves all followers, and wakes only followers of streams that moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import update
from sqlalchemy.event import listen

from app.api import streaming
from app.api.streaming import Tail, Watcher
from app.domain.events import StudyPaused
from app.events.database import Database
from app.events.memory import MemoryLog
from app.events.sql_log import SqlLog
from app.events.tables import EVENTS
from app.outages import DatabaseUnavailable
from app.service.services import Services

FACT = StudyPaused(study="s")


class Counting(MemoryLog):
    """Counts how often it was looked at; `fails` makes it unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.fails = 0, False

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        self.looks += 1
        if self.fails:
            raise DatabaseUnavailable("The database cannot be used.")
        return super().tail(after=after, limit=limit)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.01)


async def wait_until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.005)


async def woken(watcher: Watcher) -> str:
    async with asyncio.timeout(60):
        await watcher.wait(1000)
    return watcher.stream


def test_a_hundred_followers_cost_one_read_at_a_time() -> None:
    async def main() -> None:
        log = Counting()
        tail = Tail(log, lambda: False)
        stack = [tail.watching(f"p{number % 2}") for number in range(100)]
        waiting = [asyncio.create_task(woken(await each.__aenter__())) for each in stack]
        await wait_until(lambda: log.looks >= 5)
        assert log.looks < 50
        assert not any(task.done() for task in waiting)
        log.append("p1", [FACT], expected=None, at=1.0)
        await wait_until(lambda: sum(task.done() for task in waiting) == 50)
        assert {task.result() for task in waiting if task.done()} == {"p1"}
        for task in waiting:
            task.cancel()
        for each in stack:
            await each.__aexit__(None, None, None)

    asyncio.run(main())


def test_without_followers_nothing_is_read() -> None:
    async def main() -> None:
        log = Counting()
        tail = Tail(log, lambda: False)
        async with tail.watching("p"):
            await wait_until(lambda: log.looks > 0)
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)
        looks = log.looks
        await asyncio.sleep(0.05)
        assert log.looks == looks
        async with tail.watching("p") as watcher:  # it begins again
            log.append("p", [FACT], expected=None, at=1.0)
            assert await woken(watcher) == "p"

    asyncio.run(main())


def test_the_watcher_waits_for_an_unavailable_database() -> None:
    async def main() -> None:
        log = Counting()
        async with Tail(log, lambda: False).watching("p") as watcher:
            log.fails = True
            await wait_until(lambda: log.looks >= 3)
            log.append("p", [FACT], expected=None, at=1.0)
            log.fails = False
            assert await woken(watcher) == "p"

    asyncio.run(main())


def test_unknown_events_are_skipped(sqlite_url: str) -> None:
    """Another process is of a later version already, and writes events of its own."""
    database = Database(sqlite_url)
    log = SqlLog(database)

    async def main() -> None:
        async with Tail(log, lambda: False).watching("p") as watcher:  # looks once this has waited for something
            log.append("q", [FACT], expected=None, at=1.0)
            with database.write() as session:
                session.execute(update(EVENTS).values(type="OfTomorrow"))
            log.append("p", [FACT], expected=None, at=1.0)
            assert await woken(watcher) == "p"

    asyncio.run(main())
    database.dispose()


def test_all_followers_wake_when_the_server_ends() -> None:
    async def main() -> None:
        ending: list[int] = []
        async with Tail(Counting(), lambda: bool(ending)).watching("p") as watcher:
            ending.append(1)
            assert await woken(watcher) == "p"

    asyncio.run(main())


@pytest.mark.parametrize("number", [1, 100])
def test_following_an_idle_study_makes_no_query(use: Services, study: str, number: int) -> None:
    """On a real database, each poll is one statement for any number of followers."""
    database, asked = use.records.database, list[str]()  # type: ignore[attr-defined]

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    listen(database.engine, "before_cursor_execute", note)

    async def main() -> None:
        feeds = [use.broadcasts.follow(use.feed(use.find(study), 0)) for _ in range(number)]
        following = [asyncio.create_task(to_the_end(feed)) for feed in feeds]
        await wait_until(lambda: len(asked) > number and all("position >" in one for one in asked[-10:]))
        asked.clear()
        await wait_until(lambda: len(asked) >= 20)
        assert len({*asked}) == 1
        for task in following:
            task.cancel()

    asyncio.run(main())


async def to_the_end(feed: AsyncIterator[bytes]) -> None:
    async for _ in feed:
        pass
