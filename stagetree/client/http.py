"""HTTP: retried calls and resumed event streams.

Connection errors, 429 and 5xx are retried with growing pauses. That is safe for POST too: each logical call has one
`Idempotency-Key`, so the server executes it once.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stagetree.atomic_file import atomic_file
from stagetree.backoff import Backoff
from stagetree.errors import Conflict, Invalid, NotFound, ProblemError, StagetreeError, Unreachable

if TYPE_CHECKING:
    import httpx2


Json = dict[str, Any]

API = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:8000"
SILENCE = 60.0
"""Seconds without any event, keep-alives included, after which a stream counts as dead."""

AGENT_HEADER = "Stagetree-Agent"
"""The header of calls that an agent's tool makes."""

OWN_TOKENS: dict[str, str] = {}
"""The tokens of servers that this process has started, by URL. Clients send them to no other server."""

_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
_PROBLEMS: dict[int, type[ProblemError]] = {400: Invalid, 404: NotFound, 409: Conflict, 412: Conflict, 422: Invalid}
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


class StreamOver(Exception):
    """The server has sent the last event."""


class Http:
    """Connections to the server at `url`. Its methods raise `Unreachable` and `ProblemError`."""

    def __init__(
        self,
        url: str | None,
        timeout: float,
        retries: int,
        token: str | None = None,
        transport: Any = None,
        *,
        is_agent: bool = False,
    ) -> None:
        import httpx2

        self.url, self._timeout, self._retries = server_url(url), timeout, retries
        headers = {"Accept": "application/json"} | ({AGENT_HEADER: "1"} if is_agent else {})
        if token := known_token(token or OWN_TOKENS.get(self.url)):
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx2.AsyncClient(base_url=self.url, timeout=timeout, headers=headers, transport=transport)
        except httpx2.InvalidURL as error:
            raise Unreachable(self.url, error) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, root: str = API, **params: Any) -> Json:
        """The JSON object at a path. Parameters that are None are omitted."""
        params = {name: value for name, value in params.items() if value is not None}
        return object_of(await self.send("GET", root + path, params=params))

    async def post(self, path: str, body: Json | None = None, key: str | None = None, **params: Any) -> Json:
        """Send a request that the server executes once, however often it is retried."""
        from stagetree.space.distributions import plain

        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        params = {name: value for name, value in params.items() if value is not None}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(plain(body))  # also with NaN, which the server refuses with a sentence
        return object_of(await self.send("POST", API + path, content=content, headers=headers, params=params))

    async def pages(self, path: str, limit: int = 1000, **params: Any) -> AsyncIterator[Json]:
        """All items of a paginated list."""
        cursor: Json = {}
        while True:
            page = await self.get(path, limit=limit, **params, **cursor)
            for item in page["items"]:
                yield item
            if page.get("next_cursor") is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    async def follow(self, path: str, after: int = 0) -> AsyncGenerator[Json, None]:
        """Every event after number `after`, as it happens, until the server reports the end.

        A broken connection resumes after the last event received. After too many failures in a row, the error is
        raised. The stream ends when the server sends the event "end" or answers 204.
        """
        connections = failures = 0  # since the last event
        while True:
            connections += 1
            try:
                async with aclosing(self._stream(path, after)) as stream:
                    async for event in stream:
                        connections = failures = 0
                        if event.event == "end":
                            return
                        after = int(event.id or after)
                        if event.data:
                            yield _json(event.data)
            except (Unreachable, ProblemError) as error:
                failures += 1
                if failures > self._retries or not is_passing(error):
                    raise
            except StreamOver:
                return
            await asyncio.sleep(pause_after(connections))

    async def send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        """One logical call, retried until it succeeds, is refused for good, or has failed too often."""
        import httpx2

        for attempt in count(1):
            try:
                return await self.once(method, url, **options)
            except (Unreachable, ProblemError) as error:
                if attempt > 1 and method == "DELETE" and isinstance(error, NotFound):
                    return httpx2.Response(204)  # an earlier try, whose answer was lost, has deleted it
                if attempt > self._retries or not is_passing(error):
                    raise
                await asyncio.sleep(max(pause_after(attempt), error.retry_after))
        raise AssertionError

    async def download(self, path: str, folder: Path, params: Json) -> Path:
        """Write a file to a folder under the name that the server gives. Retried like `send`."""
        params = {name: value for name, value in params.items() if value is not None}
        for attempt in count(1):
            try:
                return await self._download(path, folder, params)
            except (Unreachable, ProblemError) as error:
                if attempt > self._retries or not is_passing(error):
                    raise
                await asyncio.sleep(max(pause_after(attempt), error.retry_after))
        raise AssertionError

    async def _download(self, path: str, folder: Path, params: Json) -> Path:
        async with self._open(path, params=params) as response:
            return await _write_file(response, folder)

    async def _stream(self, path: str, after: int) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """The events of one connection, which may end or break at any time."""
        import httpx2

        options: Json = {"params": {"after": after}, "timeout": httpx2.Timeout(self._timeout, read=SILENCE)}
        options["headers"] = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        async with self._open(path, **options) as response:
            if response.status_code == 204:
                raise StreamOver
            async for event in httpx2.EventSource(response):
                yield event

    @asynccontextmanager
    async def _open(self, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        """A response that is read in the block."""
        import httpx2

        try:
            async with self._http.stream("GET", API + path, **options) as response:
                if response.is_error:
                    await response.aread()
                    raise problem_of(response)
                yield response
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None

    async def once(self, method: str, url: str, **options: Any) -> httpx2.Response:
        """One request without retries."""
        import httpx2

        try:
            response = await self._http.request(method, url, **options)
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None
        if not response.is_success:
            raise problem_of(response)
        return response


async def _write_file(response: httpx2.Response, folder: Path) -> Path:
    """Write the body to a file, which gets its name only when complete."""
    _, _, name = response.headers.get("Content-Disposition", "").partition("filename=")
    target = folder / (Path(name.strip('"')).name or "checkpoint.safetensors")
    with atomic_file(target) as file:
        async for part in response.aiter_bytes():
            file.write(part)
    return target


def server_url(url: str | None) -> str:
    """The given URL, or the environment's, or the default on this machine."""
    return (url or os.environ.get("STAGETREE_URL") or DEFAULT_URL).rstrip("/")


def known_token(argument: str | None) -> str:
    """The given token, or the environment's, or that of the file; "" if there is none.

    Raises `StagetreeError` if other users can read the file.
    """
    if token := argument or os.environ.get("STAGETREE_TOKEN"):
        return token.strip()
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    file = Path(home) / "stagetree" / "token"
    try:
        if file.stat().st_mode & 0o077:
            raise StagetreeError(f"others can read {file}: chmod 600 {file}")
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def object_of(response: httpx2.Response) -> Json:
    """The JSON object in a response."""
    if not response.content:
        return {}
    return _json(response.text)


def _json(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StagetreeError(f"this is not a stagetree server: it answered {text[:200]!r}")
    return value


def problem_of(response: httpx2.Response) -> ProblemError:
    """The error of a response, problem+json or not."""
    try:
        body = _json(response.text)
    except StagetreeError:
        body = {"detail": _outline(response)}
    title = str(body.get("title") or f"HTTP {response.status_code} {response.reason_phrase}")
    errors = [error for error in body.get("errors") or () if isinstance(error, dict)]
    cls = _PROBLEMS.get(response.status_code, ProblemError)
    problem = cls(response.status_code, title, str(body.get("detail") or ""), errors)
    problem.retry_after = _seconds(response.headers.get("Retry-After", ""))
    return problem


def _outline(response: httpx2.Response) -> str:
    """The readable part of an error page from another server, such as a proxy."""
    if "html" in response.headers.get("Content-Type", ""):
        return f"what answers at {response.url} is another kind of server, or one in front of stagetree's"
    return " ".join(response.text[:200].split())


def _seconds(text: str) -> float:
    return min(float(text), LONGEST_PAUSE) if text.isdecimal() else 0.0


def is_passing(error: Unreachable | ProblemError) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, Unreachable) or error.status in _TRY_AGAIN


def pause_after(failures: int) -> float:
    """The pause after `failures` failures in a row: doubling, with jitter so that clients do not return together."""
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE).seconds(max(1, failures))


def path_of(study: str) -> str:
    return f"/studies/{quote(study, safe='')}"
