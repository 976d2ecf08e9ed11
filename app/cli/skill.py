"""`stagetree skill install`: the file by which an agent learns to use stagetree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.agents.skill import PLACES, Agent, is_skill, skill_text
from app.cli.errors import CONFLICT, fail

For = Annotated[
    Agent, typer.Option("--for", help="; ".join(f"{agent}: {place}" for agent, place in PLACES.items()) + ".")
]
To = Annotated[
    Path, typer.Option("--to", metavar="PATH", help="The folder of the project, or ~ for all; by default this one.")
]


def install(agent: For = Agent.generic, to: To = Path()) -> None:
    """Write the file by which an agent learns to use stagetree; replaces none but its own.

    \b
    Example:  stagetree skill install --for claude
    """
    file = to.expanduser() / PLACES[agent]
    if file.exists() and not is_skill(file.read_text(encoding="utf-8")):
        fail(f"{file} is there already, and is no file of stagetree's: name another folder with --to", CONFLICT)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(skill_text(agent), encoding="utf-8")
    print(f"Wrote {file}. Its tools: `stagetree mcp`, which needs pip install 'stagetree[mcp]'.")
