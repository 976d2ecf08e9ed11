"""`stagetree suggest` and `sampler`: configurations for a study's tuner to try, and what its sampler would try."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, one_line, print_json
from app.cli.service import open_study
from app.cli.study_files import changes_of
from stagetree.text import short_hp

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE...]",
        help="Hyper-parameters, or places inside the space such as lr.init; each value as in a study file.",
    ),
]

Withdrawn = Annotated[
    int | None,
    typer.Option("--withdraw", metavar="N", min=0, help="Withdraw suggestion N, whose trial has not begun, instead."),
]


def suggest(
    id: StudyId,
    values: Given = None,
    withdraw: Withdrawn = None,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Suggest a configuration to a study's tuner, which tries it next; without values, list all suggestions.

    Missing values are chosen when its trial begins, which counts as the tuner's; `trial add` adds others.

    \b
    Example:  stagetree suggest last lr=0.1 bs=64
    """
    if values and withdraw is not None:
        raise typer.BadParameter("must come without values, which would be suggested", param_hint="--withdraw")
    with open_study(id, server, dir) as (service, study):
        if withdraw is not None:
            service.client.withdraw(study, withdraw)
            items = [service.client.suggestions(study)[withdraw]]
        elif values:
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
    """A suggestion with its state. is_new: this command has just made it."""
    values = " ".join(f"{name}={json.dumps(value)}" for name, value in suggestion["hp"].items())
    by = f" by {suggestion['by']}" if suggestion["by"] else ""
    trial = suggestion["trial"]
    stands = "waits for the next place" if trial is None else f"is trial {trial}"
    stands = stands if suggestion["withdrawn_at"] is None else "is withdrawn"
    return f"suggestion {suggestion['suggestion']}{'' if is_new else by}: {values} {stands}"


def sampler(
    id: StudyId,
    at: Annotated[
        int | None, typer.Option("--at", metavar="N", min=1, help="As of the event at this position.")
    ] = None,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Show what a study's sampler knows and would propose next, from the log alone. Changes nothing.

    \b
    Example:  stagetree sampler last
    """
    with open_study(id, server, dir) as (service, study):
        state = service.client.sampler(study, at)
    if output is Format.json:
        print_json(dict(state))
        return
    print(f"sampler  {state['sampler'] or '-'}")
    for number, sentence in enumerate(state["text"]):
        print(f"{'' if number else 'knows':<8} {one_line(sentence)}")
    if following := state["next"]:
        print(f"next     {one_line(short_hp(following['hp']))}")
