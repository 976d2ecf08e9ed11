"""`stagetree trainers`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.options import ListOutput, Server
from app.cli.output import ListFormat, print_list
from app.cli.service import open_server, server_url


def trainers(
    server: Server = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--trainers", metavar="FILE.py", help="A Python file with trainers; may be repeated."),
    ] = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """List the trainers of a server or, without one, the trainers that `run` would find here.

    \b
    Example:  stagetree trainers --trainers trainer.py
    """

    from app.cli.trainer_files import trainer_files
    from app.registry import describe

    if url := None if files else server_url(server):
        with open_server(url) as service:
            offered = service.client.trainers()
    else:
        described = describe(trainer_files(files or []))
        offered = [{"name": name, "version": version} for name, version in sorted(described.items())]
    print_list(offered, output, ("trainer", "version"), [(each["name"], each["version"][:12]) for each in offered])
