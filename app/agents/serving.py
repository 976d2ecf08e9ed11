"""All tools, in the order in which an agent needs them, and their server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import stagetree
from app.agents import status, studies, trials
from app.agents.tool import Tool
from stagetree.client import AsyncClient, StagetreeError
from stagetree.sequences import did_you_mean
from stagetree.spec import SpecError

logger = logging.getLogger(__name__)

INSTRUCTIONS = (
    "stagetree runs hyper-parameter studies, and trains the steps that trials share once. Price a study with "
    "`preview`, `submit` it, and call `wait` with the answered `cursor` until it is over. The server keeps each study "
    "and each decision, so `status` has everything after a break. Every answer says its price or its cost, and how far "
    "its numbers are verified. Write what you learn with `note`."
)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("preview", studies.preview, studies.PreviewArguments, reads=True),
        Tool("submit", studies.submit, studies.SubmitArguments, reads=False),
        Tool("status", status.status, status.StatusArguments, reads=True),
        Tool("wait", status.wait, status.StatusArguments, reads=True),
        Tool("trial", trials.trial, trials.TrialArguments, reads=True),
        Tool("compare", trials.compare, trials.CompareArguments, reads=True),
        Tool("branch", trials.branch, trials.BranchArguments, reads=False),
        Tool("enqueue", trials.enqueue, trials.EnqueueArguments, reads=False),
        Tool("stop", studies.stop, studies.StopArguments, reads=False),
        Tool("note", studies.note, studies.NoteArguments, reads=False),
        Tool("replay", studies.replay, studies.ReplayArguments, reads=True),
    )
}


def make_server(connect: Callable[[], AsyncClient]) -> Server[Any]:
    """A server of all tools. connect: returns the client with the rights of the caller."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.schema,
                annotations=types.ToolAnnotations(read_only_hint=tool.reads),
            )
            for tool in TOOLS.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, wanted: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if wanted.name not in TOOLS:
                near = did_you_mean(wanted.name, TOOLS)
                raise StagetreeError(f"there is no tool {wanted.name!r:.80}{near} There are {', '.join(TOOLS)}")
            answer = await TOOLS[wanted.name].call(connect(), wanted.arguments or {})
            text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)])
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


def _refusal(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)
