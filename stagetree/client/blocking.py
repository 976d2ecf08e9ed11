"""Asynchronous methods for programs without a loop: the synchronous face of a class is made of these, a line each.

    class Client(Blocking):
        study = blocking(AsyncClient.study)

One loop in a thread serves all of a process, so that this also works if a loop already runs, as in notebooks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, update_wrapper
from threading import Event
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast
from weakref import WeakSet

from anyio import CancelScope, Lock
from anyio.from_thread import BlockingPortal, start_blocking_portal

from stagetree.errors import StagetreeError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_NO_MORE: Any = object()
_CLOSED = "the connection was closed"
_END_SECONDS = 5.0
"""How long an interrupted call may take to end."""


@cache
def _portal(process: int) -> BlockingPortal:
    """The event loop of a process. A fork gets its own, because threads do not survive a fork.

    A separate thread starts it: Ctrl-C interrupts the main thread, which could otherwise wait forever for a loop that
    is only half started.
    """
    with ThreadPoolExecutor(1) as another:
        return another.submit(_start_portal).result()


def _start_portal() -> BlockingPortal:
    closing = ExitStack()
    portal = closing.enter_context(start_blocking_portal(name="stagetree"))
    atexit.register(_end, portal, closing)
    return portal


def _end(portal: BlockingPortal, closing: ExitStack) -> None:
    """Close all calls. Threads may still wait for an answer, such as the next event of an idle study."""
    with suppress(RuntimeError):  # it is not running
        portal.call(_close_all)
        portal.call(portal.stop, True)
    closing.close()


class Blocking:
    """The base class of synchronous wrappers around an asynchronous object."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._portal, self._is_open = _portal(os.getpid()), True
        try:
            self._core = self._run(make())
        except StagetreeError as error:  # a sentence about the call: no code of the user ran meanwhile
            raise error.with_traceback(None) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The server keeps working."""
        if self._is_open:
            try:
                self._run(self._core.close())
            finally:
                self._is_open = False

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interrupt, also during the start, cancels it."""
        call = _Call(coroutine)
        try:
            return self._start(call).result()
        except CancelledError:
            raise StagetreeError(_CLOSED) from None
        except BaseException:
            with suppress(RuntimeError):  # the loop is not running any more
                self._portal.start_task_soon(call.give_up)
                call.ended.wait(_END_SECONDS)
            raise

    def _start(self, call: _Call[T]) -> Future[T]:
        """Schedule the call on the loop. Raises `StagetreeError` if the loop is closed, for example at exit."""
        if self._is_open:
            with suppress(RuntimeError):  # the loop is not running any more
                return self._portal.start_task_soon(call.run)
        call.coroutine.close()
        raise StagetreeError(_CLOSED)


class _Call(Generic[T]):
    """A coroutine scheduled on the loop. Its methods run in the loop, in the order of the calls."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine, self.ended = coroutine, Event()
        self._scope: CancelScope | None = None

    async def run(self) -> Any:
        """The result, or `None` if the call was given up and has no caller left."""
        try:
            with CancelScope() as self._scope:
                return await self.coroutine
        finally:
            self.ended.set()

    def give_up(self) -> None:
        """Cancel the call, or prevent its start if the interrupt came before the loop saw it."""
        if self._scope is None:
            self.coroutine.close()
            self.ended.set()
        else:
            self._scope.cancel()


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """A synchronous version of the method."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done: T = self._run(method(self._core, *args, **kwargs))
        return done

    update_wrapper(call, method)
    return call


def chained(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]) -> Callable[Concatenate[S, P], S]:
    """A synchronous version of the method that returns the object itself."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        self._run(method(self._core, *args, **kwargs))
        return self

    update_wrapper(call, method)
    return call


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    """A synchronous version of an asynchronous iterator.

    Close it if you leave it early: an exception raised by a signal handler during garbage collection is lost.
    """

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        items = _Items(method(self._core, *args, **kwargs))
        try:
            while (item := self._run(items.next())) is not _NO_MORE:
                yield item
        finally:
            with suppress(StagetreeError):  # the loop has ended, and has closed it
                self._run(items.close())

    update_wrapper(call, method)
    return call


class _Items(Generic[T]):
    """The items of an asynchronous generator. Its methods run in the loop."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items, self._is_open, self._turn = items, True, Lock()
        self._wait: CancelScope | None = None

    async def next(self) -> T:
        """The next item, or `_NO_MORE`. Raises `StagetreeError` if the generator was closed before its end."""
        async with self._turn:
            if self._is_open:
                _open.add(self)
                with CancelScope() as self._wait:
                    return await anext(self._items, _NO_MORE)
        raise StagetreeError(_CLOSED)

    async def close(self) -> None:
        """Close the generator and its connection, and wake the thread that waits for an item."""
        self._is_open = False
        if self._wait is not None:
            self._wait.cancel()
        async with self._turn:
            await self._items.aclose()  # type: ignore[attr-defined]


_open = WeakSet[_Items[Any]]()
"""All open generators. On exit, the loop would close them at once, an inner one while its outer one is closing."""


async def _close_all() -> None:
    """Close all generators before the loop ends, whether or not a thread waits for an item."""
    for items in tuple(_open):
        await items.close()


async def wait_all(results: Iterable[Awaitable[T]], *, return_exceptions: bool = False) -> list[T]:
    """Wait for all, and return their results in order. Raises the first error, unless `return_exceptions` is true."""
    return cast("list[T]", await asyncio.gather(*results, return_exceptions=return_exceptions))


async def wait_any(
    results: Iterable[Coroutine[Any, Any, T] | asyncio.Future[T]],
) -> tuple[list[asyncio.Future[T]], list[asyncio.Future[T]]]:
    """Wait until one is done, and return the done ones and the pending ones, which `wait_any` takes again."""
    futures = [asyncio.ensure_future(result) for result in results]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return [each for each in futures if each.done()], [each for each in futures if not each.done()]
