"""`stagetree tokens`, `token create` and `token revoke`.

They work on the database itself, so that the first token needs no other.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.errors import USAGE, check_finite, fail
from app.cli.options import Output, Store, folder_or_default, open_records
from app.cli.output import Format, print_answer, print_json, print_table

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that the log has for its holder.")]
Days = Annotated[float, typer.Option("--days", metavar="N", min=0.001, help="Days until it expires.")]
ScopeName = Annotated[
    str, typer.Option("--scope", metavar="SCOPE", help="read, submit (own studies), operate (all), or admin (tokens).")
]
Project = Annotated[
    str,
    typer.Option(
        "--project", metavar="P", help="The project whose studies it can use; by default studies of no project."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--max-slot-seconds",
        metavar="S",
        min=0.001,
        callback=check_finite,
        help="The seconds of slots that all its studies may take; by default no limit.",
    ),
]
AllProjects = Annotated[bool, typer.Option("--all-projects", help="It can use the studies of all projects.")]


INTERNAL = ("digest", "writes")
"""The fields of a token that no list shows."""


def create(
    name: Name,
    scope: ScopeName = "submit",
    project: Project = "",
    all_projects: AllProjects = False,
    days: Days = 90,
    max_slot_seconds: Budget = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Create a token and print it. It is shown only once, and is stored nowhere.

    \b
    Example:  stagetree token create ci --scope submit --project vision
    """
    from app.domain.terms import Scope
    from app.service import access

    try:
        granted = Scope.parse(scope)
        with open_records(folder_or_default(dir)) as records:
            scoped = None if all_projects else project
            token = access.create(records, name, granted, scoped, days, time.time(), max_slot_seconds=max_slot_seconds)
    except ValueError as problem:
        fail(f"{problem}" if isinstance(problem, access.TokenRefused) else f"--scope {problem}", USAGE)
    print_answer({"name": name, "token": token}, output, token)


def tokens(dir: Store = None, output: Output = Format.table) -> None:
    """List the tokens, with the last use of each and when it expires.

    \b
    Example:  stagetree tokens
    """
    with open_records(folder_or_default(dir)) as records, records.read() as rows:
        found = rows.tokens.all()
    if output is Format.json:
        print_json([{name: value for name, value in asdict(row).items() if name not in INTERNAL} for row in found])
        return
    lines = []
    for row in found:
        project = "all" if row.project is None else row.project or "-"
        seconds = "-" if row.max_slot_seconds is None else f"{row.max_slot_seconds:g}"
        end = "never" if row.expires_at is None else _day(row.expires_at)
        end = end if row.revoked_at is None else "revoked"
        lines.append((row.name, row.scope, project, seconds, _day(row.used_at), end))
    print_table(("NAME", "SCOPE", "PROJECT", "SLOT SECONDS", "LAST USED", "ENDS"), lines)


def revoke(name: Name, dir: Store = None) -> None:
    """Revoke a token: the API refuses it a few seconds later.

    \b
    Example:  stagetree token revoke ci
    """
    from app.service import access

    try:
        with open_records(folder_or_default(dir)) as records:
            access.revoke(records, name, time.time())
    except access.TokenRefused as problem:
        fail(str(problem), USAGE)
    print(f"{name} is revoked")


def _day(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
