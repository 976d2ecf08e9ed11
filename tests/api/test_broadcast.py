"""All followers of a study share one read and one serialization, and each gets every event in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy.event import listen

from app.api import streaming
from app.domain import commands as c
from app.domain.terms import StudyId
from app.events.sql_log import SqlLog
from app.outages import DatabaseUnavailable
from app.service.services import Services
from tests.api.world import Workers

Said = tuple[str, Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.01)


def follow(use: Services, study: str, after: int = 0) -> AsyncIterator[Said]:
    """The events and, at last, the end: each with its id, or the name of it."""
    return parse_events(use.broadcasts.follow(use.feed(use.find(study), after)))


async def parse_events(stream: AsyncIterator[bytes]) -> AsyncIterator[Said]:
    async for part in stream:
        for text in part.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
            if "data" in fields:
                yield fields.get("id") or fields["event"], json.loads(fields["data"])


async def collect(stream: AsyncIterator[Said]) -> list[Said]:
    async with asyncio.timeout(60):
        return [said async for said in stream]


def note(workers: Workers, study: str, number: int) -> None:
    workers.decide(study, c.AddNote(study=StudyId(study), text=f"note {number}", trial=None, at=1.0))


def cancel(workers: Workers, study: str) -> None:
    workers.decide(study, c.CancelStudy(study=StudyId(study), at=1.0))


@pytest.mark.parametrize("number", [1, 100])
def test_a_hundred_followers_cost_as_many_reads_as_one(
    use: Services, study: str, workers: Workers, number: int
) -> None:
    asked = list[str]()

    def look(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    async def main() -> list[list[Said]]:
        streams = [follow(use, study) for _ in range(number)]
        for stream in streams:
            assert (await anext(stream))[0] == "1"
        followers = [asyncio.create_task(collect(stream)) for stream in streams]
        listen(use.records.database.engine, "before_cursor_execute", look)  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            while len(asked) < 10 or not all("position >" in statement for statement in asked[-10:]):
                await asyncio.sleep(0.005)  # until all of them wait, and only the tail looks
        asked.clear()
        await asyncio.to_thread(cancel, workers, study)
        return await asyncio.gather(*followers)

    heard = asyncio.run(main())
    assert [[name for name, _ in said] for said in heard] == [["2", "end"]] * number
    assert len([statement for statement in asked if "events.stream =" in statement]) <= 8


def test_a_slow_follower_misses_nothing_and_needs_no_queue(
    use: Services, study: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEPT_BYTES", 1000)
    monkeypatch.setattr(streaming, "BATCH", 7)

    async def main() -> None:
        slow, fast = follow(use, study), follow(use, study)
        assert [(await anext(stream))[0] for stream in (slow, fast)] == ["1", "1"]
        for number in range(40):
            await asyncio.to_thread(note, workers, study, number)
            assert (await anext(fast))[1]["data"]["text"] == f"note {number}"
        await asyncio.to_thread(cancel, workers, study)
        assert [name for name, _ in await collect(fast)] == ["42", "end"]
        assert [name for name, _ in await collect(slow)] == [*map(str, range(2, 43)), "end"]

    asyncio.run(main())


def test_a_study_that_is_deleted_says_so(use: Services, study: str, workers: Workers) -> None:
    async def main() -> None:
        stream = follow(use, study, 1)
        cancel(workers, study)
        workers.decide(study, c.DeleteStudy(study=StudyId(study), at=2.0))
        heard = await collect(stream)
        assert [name for name, _ in heard] == ["2", "3", "end"]
        assert heard[-1] == ("end", {"state": "deleted"})

    asyncio.run(main())


def test_a_study_that_is_over_ends_for_those_who_are_late_and_for_those_who_come_back(
    use: Services, study: str, workers: Workers
) -> None:
    async def main() -> None:
        late = follow(use, study)
        await anext(late)
        cancel(workers, study)
        for stream in (follow(use, study), follow(use, study, 1), late):
            assert (await collect(stream))[-2:] == [("2", ANY), ("end", {"state": "cancelled"})]

    asyncio.run(main())


def test_a_database_outage_ends_all_streams(
    use: Services, study: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each follower returns with the reason."""
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.05)

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("The database cannot be used.")

    async def main() -> None:
        streams = [follow(use, study) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        following = [asyncio.create_task(collect(stream)) for stream in streams]
        with monkeypatch.context() as patched:
            patched.setattr(SqlLog, "read", away)
            assert await asyncio.gather(*following) == [[]] * 3
        assert (await anext(follow(use, study)))[0] == "1"

    asyncio.run(main())
