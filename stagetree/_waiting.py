"""Wait for several results at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def wait_all(results: Iterable[Awaitable[T]], *, return_exceptions: bool = False) -> list[T]:
    """Wait for all, and return what they came to, in order. The first error is raised, unless errors are returned."""
    return cast("list[T]", await asyncio.gather(*results, return_exceptions=return_exceptions))


async def wait_any(
    results: Iterable[Coroutine[Any, Any, T] | asyncio.Future[T]],
) -> tuple[list[asyncio.Future[T]], list[asyncio.Future[T]]]:
    """Wait for one or more, and return those that are done and those that are not: `wait_any` takes them again."""
    futures = [asyncio.ensure_future(result) for result in results]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return [each for each in futures if each.done()], [each for each in futures if not each.done()]
