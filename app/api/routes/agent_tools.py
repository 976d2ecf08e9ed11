"""The tools for agents over HTTP, at `/mcp`: stateless, so that any API process answers any call.

A tool calls the REST routes of this application as its caller. So scopes, owners, projects and turns hold as they do
there, and there is no other way from a tool to a study.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import httpx2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import WITHIN
from app.api.errors import TRY_AGAIN, answer
from app.api.strict import StrictRequest
from app.domain import terms
from app.domain.terms import Principal
from app.service.services import HttpProblem
from stagetree.client import AsyncClient

MOST_CALLS = 64
"""Calls at once. Callers of the scope `read` have at most half of them, and leave the others to other callers."""

RETRIES = 2
"""How often a tool tries again where a turn did not come."""

MISSING = "This server has no tools for agents, since mcp is not installed there: pip install 'stagetree[mcp]'."


class AgentTools:
    """The application at `/mcp`."""

    def __init__(self) -> None:
        self._calls = Counter[bool]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = StrictRequest(Request(scope, receive))
        try:
            if request.method != "POST":
                raise HttpProblem(405, "The tools for agents take POST alone: they keep no session.")
            if find_spec("mcp") is None:
                raise HttpProblem(501, MISSING)
            with self._call(request.state.principal):
                await self._serve(request, send)
        except HttpProblem as problem:
            headers = {405: {"Allow": "POST"}, 429: TRY_AGAIN}.get(problem.status)
            await answer(request, problem.status, problem.detail, headers)(scope, receive, send)

    @contextmanager
    def _call(self, who: Principal) -> Iterator[None]:
        """Count a call while it lasts. Raises `HttpProblem` 429."""
        is_reader = who.scope == terms.Scope.READ
        if self._calls.total() >= MOST_CALLS or (is_reader and self._calls[True] >= MOST_CALLS // 2):
            raise HttpProblem(429, "Many tools of agents are at work here: call again in a moment.")
        self._calls[is_reader] += 1
        try:
            yield
        finally:
            self._calls[is_reader] -= 1

    async def _serve(self, request: StrictRequest, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        serving: Any = await run_in_threadpool(import_module, "app.agents.serving")  # slow
        async with AsyncExitStack() as held:
            await request.prepare(held, is_json=False)
            client = AsyncClient(
                "http://localhost",
                retries=RETRIES,
                token="unused",
                transport=httpx2.ASGITransport(
                    _as_caller(request.app, request.state.principal), raise_app_exceptions=False
                ),
                is_agent=True,
            )
            await held.enter_async_context(client)
            manager = StreamableHTTPSessionManager(
                serving.make_server(lambda: client), json_response=True, stateless=True
            )
            await held.enter_async_context(manager.run())
            await manager.handle_request(request.scope, _replayed(await request.body(), request.receive), send)


def _as_caller(app: ASGIApp, who: Principal) -> ASGIApp:
    """The application for requests that this caller makes by way of a tool."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, WITHIN: who}, receive, send)

    return called


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read already, and then the end of the connection."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


route = Route("/mcp", AgentTools(), methods=["GET", "POST", "DELETE"], name="agent_tools", include_in_schema=False)
