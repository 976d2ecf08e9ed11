"""What plays an agent in tests: it calls tools, and reads their answers as text."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mcp import Client as Agent

from app.agents.serving import make_server
from stagetree.client import AsyncClient

Json = dict[str, Any]

CHARACTERS_OF_A_TOKEN = 4


class Refusal(Exception):
    """A tool has refused; the message is its sentence."""


def read(result: Any) -> Json:
    """The answer of a tool. Raises `Refusal`."""
    (content,) = result.content
    if result.is_error:
        raise Refusal(content.text)
    answer: Json = json.loads(content.text)
    return answer


def call(url: str, name: str, token: str | None = None, **arguments: Any) -> Json:
    """One call of a tool by a program that talks to the API at `url`. Raises `Refusal`."""

    async def calling() -> Any:
        async with (
            AsyncClient(url, retries=0, token=token) as client,
            Agent(make_server(lambda: client)) as agent,
        ):
            return await agent.call_tool(name, arguments)

    return read(asyncio.run(calling()))


def list_tools(url: str = "http://127.0.0.1:1") -> list[Any]:
    """The tools as an agent sees them."""

    async def listing() -> list[Any]:
        async with AsyncClient(url) as client, Agent(make_server(lambda: client)) as agent:
            return list((await agent.list_tools()).tools)

    return asyncio.run(listing())
