"""`stagetree api`: the API of a cluster."""

from __future__ import annotations

import os

from app.cli.options import Host, Insecure, Port


def api(host: Host = "127.0.0.1", port: Port = 8000, insecure: Insecure = False) -> None:
    """Run the API of a cluster until it is stopped. The settings come from the environment.

    \b
    Example:  stagetree api --host 0.0.0.0
    """
    from app.api.server import serve

    if insecure:
        os.environ["STAGETREE_ACCESS"] = "open"
    serve(host, port)
