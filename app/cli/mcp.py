"""`stagetree mcp`: the tools for agents, over stdio."""

from __future__ import annotations

import anyio

from app.cli.extras import require
from app.cli.options import Server
from app.cli.service import local_server_url, server_url


def mcp(server: Server = None) -> None:
    """Serve the tools for agents over stdin and stdout, by the Model Context Protocol.

    An agent's program starts it. The tools work on a running server, with the rights of STAGETREE_TOKEN.

    \b
    Example:  stagetree mcp --server http://gpu-box:8000
    """
    require("mcp")
    from app.agents.serving import serve_stdio
    from stagetree.client import AsyncClient

    anyio.run(serve_stdio, AsyncClient(server_url(server) or local_server_url(lasting=True), is_agent=True))
