"""`stagetree note` and `tag`: annotations of a study, which change no result."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, one_line, print_answer
from app.cli.service import open_study
from app.cli.study_files import changes_of


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
    if correct is not None and trial is not None:
        raise typer.BadParameter("a corrected note is about the same trial: leave out --trial", param_hint="--correct")
    with open_study(id, server, dir) as (service, study):
        if correct is None:
            written = service.client.add_note(study, text, trial)
            about = study if trial is None else f"trial {trial} of {study}"
            line = f"noted with {about}: event {written['position']}"
        else:
            written = service.client.correct_note(study, correct, text)
            line = f"the note of event {correct} of {study} is corrected"
    print_answer(written, output, line)


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
    with open_study(id, server, dir) as (service, name):
        if tags or remove or values:
            study = service.client.label(name, tags or [], remove or [], changes_of(values or [], "--set"))
        else:
            study = service.client.study(name, trials=False)
    words, attributes = study.get("tags", []), study.get("attributes", {})
    lines = [f"tags    {' '.join(words) or '-'}"]
    lines += [f"        {name} = {one_line(str(value))}" for name, value in attributes.items()]
    print_answer({"study": study["study"], "tags": words, "attributes": attributes}, output, *lines)
