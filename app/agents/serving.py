"""The server of the tools, which knows the protocol and nothing of studies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import stagetree
from app.agents.tool import Tool
from app.agents.tools import INSTRUCTIONS, TOOLS
from stagetree.client import AsyncClient, StagetreeError
from stagetree.sequences import did_you_mean
from stagetree.spec import SpecError

logger = logging.getLogger(__name__)


def make_server(connect: Callable[[], AsyncClient]) -> Server[Any]:
    """A server of all tools. connect: returns the client with the rights of the caller."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in TOOLS.values()])

    async def call_tool(_: Any, wanted: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            return _result(await _find(wanted.name).call(connect(), wanted.arguments or {}))
        except (SpecError, StagetreeError) as error:
            return _refusal(str(error))
        except Exception:  # the protocol would hide it, and end nothing
            logger.exception("the tool %s failed", wanted.name)
            return _refusal(f"{wanted.name} failed, which is a defect of stagetree: its log has the traceback.")

    return Server(
        "stagetree",
        version=stagetree.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(client: AsyncClient) -> None:
    """Serve the tools to the program at the other end of stdin and stdout, until it closes them."""
    server = make_server(lambda: client)
    async with client, stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _find(name: str) -> Tool:
    if name not in TOOLS:
        raise StagetreeError(f"there is no tool {name!r:.80}{did_you_mean(name, TOOLS)} There are {', '.join(TOOLS)}")
    return TOOLS[name]


def _listed(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(read_only_hint=tool.reads),
    )


def _result(answer: dict[str, Any]) -> types.CallToolResult:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def _refusal(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)
