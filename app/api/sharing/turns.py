"""Who computes an answer about a whole plan when: everybody else is answered beside it, as if nobody asked for much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

TURN_SECONDS = 30.0
"""Whoever has waited for so long goes ahead, as if there were no turns."""

AT_ONCE = 2
"""Threads share one lock of the interpreter: more of them at once are no faster, and hold up who asks for little."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_heavy: set[Callable[..., Any]] = set()


class Turns:
    """One at a time about each study, and a few at a time in all: a study many ask about holds up no other.

    Who waits for a turn waits in the event loop, and takes no thread from the others.
    """

    def __init__(self, at_once: int = AT_ONCE, seconds: float = TURN_SECONDS) -> None:
        self._all, self._seconds = asyncio.Semaphore(at_once), seconds
        self._of = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, study: str) -> AsyncIterator[None]:
        """The block is run when it is its turn, in the order in which they came about a study."""
        of_study = self._of.get(study)
        if of_study is None:
            of_study = self._of[study] = asyncio.Lock()
        async with AsyncExitStack() as held:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await held.enter_async_context(of_study)
                    await held.enter_async_context(self._all)
            yield


def heavy(endpoint: Endpoint) -> Endpoint:
    """Its answer takes time and memory with the size of a plan, unless it is asked for without trials."""
    _heavy.add(endpoint)
    return endpoint


def is_heavy(endpoint: Callable[..., Any]) -> bool:
    return endpoint in _heavy
