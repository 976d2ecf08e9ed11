"""Commands on the search of a study."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, print_json

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE...]",
        help="Hyper-parameters, or places inside the space such as lr.init; each value is JSON or a string.",
    ),
]


def suggest(
    id: StudyId, values: Given = None, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Suggest a configuration to a study's tuner, which tries it next; without values, list all suggestions.

    Missing values are chosen when its place comes. It counts as a trial of the study; `trials add` trains one beside
    the tuner's.

    \b
    Example:  stagetree suggest last lr=0.1 bs=64
    """
    from app.cli import stacks
    from app.cli.specs import changes_of

    with stacks.reading_study(id, server, dir) as (service, study):
        if values:
            items = service.client.suggest(study, [changes_of(values, "NAME=VALUE")])
        else:
            items = service.client.suggestions(study)
    is_new = bool(values)
    if output is Format.json:
        print_json({"items": [dict(each) for each in items]})
    elif items:
        for each in items:
            print(_line(each, is_new=is_new))
    else:
        print(f"nothing was suggested to {study}")


def _line(suggestion: Any, *, is_new: bool) -> str:
    """A suggestion, and what became of it.

    is_new: whether this user has just made it.
    """
    values = " ".join(f"{name}={json.dumps(value)}" for name, value in suggestion["hp"].items())
    by = f" by {suggestion['by']}" if suggestion["by"] else ""
    trial = suggestion["trial"]
    stands = "waits for the next place" if trial is None else f"is trial {trial}"
    return f"suggestion {suggestion['suggestion']}{'' if is_new else by}: {values} {stands}"
