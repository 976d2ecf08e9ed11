"""Turns: how many costly requests are under way at once, of which study, and of whom.

Three kinds of requests cost more than others. A heavy one reads a whole plan in a thread. A computed one, such as a
preview, works in a process of its own (`app.process.sandbox`). One with a large body takes a hundred times as much
memory. Each kind has turns of its own, so that an answer about a study never waits for a preview.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from app.domain.terms import ANONYMOUS_ADMIN, Principal, Scope
from app.service.services import HttpProblem

AT_ONCE = 2
"""Requests of a kind at once. Threads share the interpreter's lock, and processes the machine: more are no faster, and
delay small requests.
"""

TURN_SECONDS = 30.0
"""The longest wait for the turn of a heavy request."""

PLACE_SECONDS = 1.0
"""The longest wait for a process. Most computations take less; behind a long one, a client does better to come back."""

LARGE_BYTES = 8 * 1024
"""A larger body takes a turn, and a study in it is checked in a process of its own. Most study files are smaller."""

LARGE_AT_ONCE, LARGE_SECONDS = 4, 10.0
"""Large bodies in memory at once, and the longest wait to be one of them."""


class Turns:
    """Runs one request at a time for each study, and a few in all, so that no study blocks the others.

    Callers of the scope `read` have at most half of the turns together, and leave the others to other callers. A reader
    who asks for much waits behind its own requests, so that the others of the scope come in between. Requests wait in
    the event loop and occupy no thread.
    """

    def __init__(self, at_once: int = AT_ONCE, seconds: float = TURN_SECONDS) -> None:
        self._all, self._seconds = asyncio.Semaphore(at_once), seconds
        self._share = max(1, at_once // 2)
        self._readers = asyncio.Semaphore(self._share)
        self._by_reader = WeakValueDictionary[str | None, asyncio.Semaphore]()
        self._by_study = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, study: str | None = None, who: Principal | None = ANONYMOUS_ADMIN) -> AsyncIterator[None]:
        """Run the block in its turn, in the order of requests about a study. Raises `HttpProblem` 429.

        who: None for callers of public paths, who share one share.
        """
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._seconds):
                    for wanted in self._wanted(study, who):
                        await held.enter_async_context(wanted)
            except TimeoutError:
                text = "Too many requests that take long are under way, of yours or of others; try again later."
                raise HttpProblem(429, text) from None
            yield

    def _wanted(self, study: str | None, who: Principal | None) -> list[asyncio.Lock | asyncio.Semaphore]:
        """The locks of a request, in their order: a reader waits for its share before it holds the lock of a study."""
        wanted: list[asyncio.Lock | asyncio.Semaphore] = []
        if who is None or who.scope == Scope.READ:
            wanted.append(self._by_reader.setdefault(who.name if who else None, asyncio.Semaphore(self._share)))
            wanted.append(self._readers)
        if study is not None:
            wanted.append(self._by_study.setdefault(study, asyncio.Lock()))
        return [*wanted, self._all]
