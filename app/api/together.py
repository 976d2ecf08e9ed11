"""What many ask for at the same moment is done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class Together:
    """Whoever asks shares what begins after that, and so is answered as if nobody else asked. Lives in one event loop.

    Pages that follow a study all ask for it when something happens there.
    """

    def __init__(self) -> None:
        self._running = dict[Hashable, asyncio.Task[Any]]()
        self._next = dict[Hashable, asyncio.Task[Any]]()

    async def do(self, what: Hashable, work: Callable[[], T]) -> T:
        """What the work comes to, in a thread; `what` is the name of equal work. Raises what the work raises."""
        task = self._next.get(what)
        if task is None:
            task = self._next[what] = asyncio.create_task(self._after(self._running.get(what), what, work))
        return cast(T, await asyncio.shield(task))  # the others wait on where one goes away

    async def _after(self, before: asyncio.Task[Any] | None, what: Hashable, work: Callable[[], T]) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running[what] = self._next.pop(what)
        try:
            return await run_in_threadpool(work)
        finally:
            if what not in self._next:
                del self._running[what]
