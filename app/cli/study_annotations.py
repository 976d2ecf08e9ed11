"""Commands that tell a study something: notes, tags and attributes, which change nothing; and configurations to try.

What its sampler would try without them, `sampler` says.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, one_line, print_json, short_hp


def note(
    id: StudyId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text of the note.")],
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", metavar="N", min=0, help="The trial that the note is about; by default the whole study."
        ),
    ] = None,
    correct: Annotated[
        int | None,
        typer.Option("--correct", metavar="EVENT", min=1, help="Replace the text of the note that this event added."),
    ] = None,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Add a note to a study or a trial, also when it is over; no result changes.

    \b
    Example:  stagetree note last "diverges after the warm-up" --trial 3
    """
    from app.cli import stacks

    if correct is not None and trial is not None:
        raise typer.BadParameter("a corrected note is about the same trial: leave out --trial", param_hint="--correct")
    with stacks.reading_study(id, server, dir) as (service, study):
        if correct is None:
            written = service.client.add_note(study, text, trial)
        else:
            written = service.client.correct_note(study, correct, text)
    if output is Format.json:
        print_json(written)
    elif correct is None:
        about = study if trial is None else f"trial {trial} of {study}"
        print(f"noted with {about}: event {written['position']}")
    else:
        print(f"the note of event {correct} of {study} is corrected")


Tags = Annotated[list[str] | None, typer.Argument(metavar="[TAG...]", help="Tags to add.")]
Removed = Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="A tag to remove; may be repeated.")]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Set an attribute, to JSON or a string; null removes it. May be repeated."
    ),
]


def tag(
    id: StudyId,
    tags: Tags = None,
    remove: Removed = None,
    values: Values = None,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Tag a study, and set attributes of it, also when it is over; without arguments, print both.

    \b
    Example:  stagetree tag last paper baseline --set dataset=v3
    """
    from app.cli import stacks
    from app.cli.study_files import changes_of

    with stacks.reading_study(id, server, dir) as (service, name):
        if tags or remove or values:
            study = service.client.label(name, tags or [], remove or [], changes_of(values or [], "--set"))
        else:
            study = service.client.study(name, trials=False)
    words, attributes = study.get("tags", []), study.get("attributes", {})
    if output is Format.json:
        print_json({"study": study["study"], "tags": words, "attributes": attributes})
        return
    print(f"tags    {' '.join(words) or '-'}")
    for name, value in attributes.items():
        print(f"        {name} = {one_line(str(value))}")


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

    Missing values are chosen when its trial begins, which counts as the tuner's; `trials add` adds others.

    \b
    Example:  stagetree suggest last lr=0.1 bs=64
    """
    from app.cli import stacks
    from app.cli.study_files import changes_of

    if values and withdraw is not None:
        raise typer.BadParameter("must come without values, which would be suggested", param_hint="--withdraw")
    with stacks.reading_study(id, server, dir) as (service, study):
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
    """A suggestion, and what became of it.

    is_new: whether this user has just made it.
    """
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
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, study):
        state = service.client.sampler(study, at)
    if output is Format.json:
        print_json(dict(state))
        return
    print(f"sampler  {state['sampler'] or '-'}")
    for number, sentence in enumerate(state["text"]):
        print(f"{'' if number else 'knows':<8} {one_line(sentence)}")
    if following := state["next"]:
        print(f"next     {one_line(short_hp(following['hp']))}")
