"""The asynchronous half of the client: what `stagetree.study` needs of it, by the rules of `stagetree.client`."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING, Any

from stagetree.client import (
    API,
    SILENCE,
    Json,
    ProblemError,
    StreamOver,
    Unreachable,
    is_passing,
    object_of,
    pause_after,
    problem_of,
    server_url,
)

if TYPE_CHECKING:
    import httpx2


class AsyncClient:
    """Calls that are tried again, and streams that are made again, until they succeed or fail for good."""

    def __init__(self, url: str | None, timeout: float, retries: int, transport: Any = None) -> None:
        import httpx2

        self.url, self._timeout, self._retries = server_url(url), timeout, retries
        headers = {"Accept": "application/json"}
        try:
            self._http = httpx2.AsyncClient(base_url=self.url, timeout=timeout, headers=headers, transport=transport)
        except httpx2.InvalidURL as error:
            raise Unreachable(self.url, error) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, **params: Any) -> Json:
        """The JSON object at a path."""
        return object_of(await self._send("GET", API + path, params=params))

    async def post(self, path: str, body: Json | None = None) -> Json:
        """Do something once, however often it takes to reach the server."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return object_of(await self._send("POST", API + path, json=body, headers=headers))

    async def pages(self, path: str, limit: int = 1000) -> AsyncIterator[Json]:
        """All items of a list."""
        cursor: Json = {}
        while True:
            page = await self.get(path, limit=limit, **cursor)
            for item in page["items"]:
                yield item
            if page.get("next_cursor") is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    async def follow(self, path: str, after: int = 0) -> AsyncIterator[Json]:
        """Every event after event number `after`, as it happens, until the server says that it was the last."""
        connections = failures = 0
        while True:
            connections += 1
            try:
                async for event in self._stream(path, after):
                    connections = failures = 0
                    if event.event == "end":
                        return
                    after = int(event.id or after)
                    if event.data:
                        yield json.loads(event.data)
            except (Unreachable, ProblemError) as error:
                failures += 1
                if failures > self._retries or not is_passing(error):
                    raise
            except StreamOver:
                return
            await asyncio.sleep(pause_after(connections))

    async def _stream(self, path: str, after: int) -> AsyncIterator[httpx2.ServerSentEvent]:
        import httpx2

        options: Json = {"params": {"after": after}, "timeout": httpx2.Timeout(self._timeout, read=SILENCE)}
        options["headers"] = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            async with self._http.stream("GET", API + path, **options) as response:
                if response.status_code == 204:
                    raise StreamOver
                if response.is_error:
                    await response.aread()
                    raise problem_of(response)
                async for event in httpx2.EventSource(response):
                    yield event
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        for attempt in count(1):
            try:
                return await self._try(method, url, **options)
            except (Unreachable, ProblemError) as error:
                if attempt > self._retries or not is_passing(error):
                    raise
                await asyncio.sleep(max(pause_after(attempt), error.retry_after))
        raise AssertionError

    async def _try(self, method: str, url: str, **options: Any) -> httpx2.Response:
        import httpx2

        try:
            response = await self._http.request(method, url, **options)
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None
        if not response.is_success:
            raise problem_of(response)
        return response
