"""Concurrent callers share one run, and each gets a result computed after its own request."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.api.services import SingleFlight


class Work:
    """Work that ends when it may; it comes to how often it was done."""

    def __init__(self) -> None:
        self.done, self.may_end = 0, threading.Event()
        self.begun = threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self.may_end.wait(60)
        self.done += 1
        return self.done


def test_concurrent_callers_share_the_next_run() -> None:
    async def main() -> None:
        single_flight, work = SingleFlight(), Work()
        first = [asyncio.create_task(single_flight.do("a", work)) for _ in range(50)]
        assert await asyncio.to_thread(work.begun.wait, 60)
        later = [asyncio.create_task(single_flight.do("a", work)) for _ in range(50)]
        await asyncio.sleep(0)
        work.may_end.set()
        assert await asyncio.gather(*first) == [1] * 50
        assert await asyncio.gather(*later) == [2] * 50
        assert await single_flight.do("a", work) == 3

    asyncio.run(main())


def test_other_work_does_not_wait() -> None:
    async def main() -> None:
        single_flight, held, free = SingleFlight(), Work(), Work()
        free.may_end.set()
        waiting = asyncio.create_task(single_flight.do("a", held))
        assert await single_flight.do("b", free) == 1
        assert not waiting.done()
        held.may_end.set()
        await waiting

    asyncio.run(main())


def test_a_leaving_caller_cancels_no_other() -> None:
    async def main() -> None:
        single_flight, work = SingleFlight(), Work()
        gone, stays = (asyncio.create_task(single_flight.do("a", work)) for _ in range(2))
        assert await asyncio.to_thread(work.begun.wait, 60)
        gone.cancel()
        work.may_end.set()
        assert await stays == 1
        assert gone.cancelled()

    asyncio.run(main())


def test_an_error_reaches_all_callers_and_is_retried() -> None:
    def wrong() -> int:
        raise ValueError("no")

    async def main() -> None:
        single_flight, work = SingleFlight(), Work()
        asked = [asyncio.create_task(single_flight.do("a", wrong)) for _ in range(3)]
        for each in asked:
            with pytest.raises(ValueError, match="no"):
                await each
        work.may_end.set()
        assert await single_flight.do("a", work) == 1

    asyncio.run(main())
