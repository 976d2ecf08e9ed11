"""Commands that change how a study goes on. They need the server that runs it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.options import Output, Server, StudyId
from app.cli.output import Format, print_json


def pause(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Start nothing new for a study until it is resumed; what runs for it alone is stopped, and kept.

    \b
    Example:  stagetree pause last
    """
    _change("pause", id, server, output)


def resume(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Go on with a paused study.

    \b
    Example:  stagetree resume last
    """
    _change("resume", id, server, output)


def reopen(
    id: StudyId,
    num_trials: Annotated[
        int, typer.Option("--num-trials", metavar="N", min=1, help="How many trials it has in all from here on.")
    ],
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Go on with a completed study, with more trials; what was decided stands.

    \b
    Example:  stagetree reopen digits-asha --num-trials 200
    """
    _change("reopen", id, server, output, num_trials)


def cancel(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """End a study for good; its results so far stay.

    \b
    Example:  stagetree cancel last
    """
    _change("cancel", id, server, output)


def _change(verb: str, id: str, server: str | None, output: Format, *arguments: Any) -> None:
    from app.cli import stacks
    from app.cli.finding import study_id

    with stacks.server(server) as service:
        found = getattr(service.client, verb)(study_id(service.client, id), *arguments)
    if output is Format.json:
        print_json(found)
    else:
        print(f"{found['study']} is {found['state']}")
