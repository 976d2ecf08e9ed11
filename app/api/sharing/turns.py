"""What many ask for at the same moment: done once for all of them, in turns, or in a process apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

from app.processes import TooMuch, compute_apart
from app.service.errors import InvalidField
from app.tuner_files import register

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


TURN_SECONDS = 30.0
"""Whoever has waited for so long goes ahead, as if there were no turns."""

AT_ONCE = 2
"""Threads share one lock of the interpreter: more of them at once are no faster, and hold up small requests."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_heavy: set[Callable[..., Any]] = set()


class Turns:
    """One at a time about each study, and a few at a time in all: a study many ask about holds up no other.

    A request waits for its turn in the event loop, and takes no thread from the others.
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


def apart(tuner_files: Sequence[str], do: Callable[..., T], *given: Any) -> T:
    """The result of a pure function of a module, in a bounded process of its own. Raises `InvalidField`."""
    try:
        return cast(T, compute_apart(_with_tuners, tuner_files, do, *given))
    except TooMuch as problem:
        raise InvalidField("", str(problem)) from None


def _with_tuners(files: Sequence[str], do: Callable[..., T], *given: Any) -> T:
    """There, where those that users have written are not registered yet."""
    register(files)
    return do(*given)


def heavy(endpoint: Endpoint) -> Endpoint:
    """Its answer takes time and memory with the size of a plan, unless it is asked for without trials."""
    _heavy.add(endpoint)
    return endpoint


def is_heavy(endpoint: Callable[..., Any]) -> bool:
    return endpoint in _heavy
