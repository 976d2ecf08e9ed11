"""Commands that pause, resume, annotate or change a study; and one for operators, to strike it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.errors import NOT_FOUND, fail
from app.cli.options import Output, Server, Store, StudyId, folder_or_default, open_records
from app.cli.output import Format, one_line, print_answer
from app.cli.service import open_study, open_study_on_server
from app.cli.study_files import changes_of


def pause(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Pause a study until it is resumed: no stage is started, and stages that run for it alone are stopped and kept.

    \b
    Example:  stagetree pause last
    """
    _change("pause", id, server, output)


def resume(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Resume a paused study.

    \b
    Example:  stagetree resume last
    """
    _change("resume", id, server, output)


def reopen(
    id: StudyId,
    num_trials: Annotated[
        int, typer.Option("--num-trials", metavar="N", min=1, help="The new number of trials in all.")
    ],
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Reopen a completed study for more trials; its earlier decisions stand.

    \b
    Example:  stagetree reopen digits-asha --num-trials 200
    """
    _change("reopen", id, server, output, num_trials)


def cancel(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Cancel a study for good; its results stay.

    \b
    Example:  stagetree cancel last
    """
    _change("cancel", id, server, output)


def retry(
    id: StudyId,
    trial: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of the failed trial.")],
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Retry a failed trial, for all of its requested steps; a study that is over is reopened for that.

    The tuner has already decided without the trial, and does not get its new results.

    \b
    Example:  stagetree retry last 3
    """
    with open_study(id, server, dir) as (service, study):
        answer = service.client.retry_trial(study, trial)
    print_answer(answer, output, f"trial {trial} of {study} is retried")


def _change(verb: str, id: str, server: str | None, output: Format, *arguments: Any) -> None:
    with open_study_on_server(server, id) as (service, study):
        answer = getattr(service.client, verb)(study, *arguments)
    print_answer(answer, output, f"{answer['study']} is {answer['state']}")


Id = Annotated[str, typer.Argument(metavar="ID", help="The study, as `stagetree studies` lists it.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, which is kept with the study.")]

Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder of an embedded stack; else .stagetree here, or STAGETREE_DATABASE_URL."),
]


def strike(id: Id, reason: Reason = "it harmed others", dir: Folder = None) -> None:
    """Strike a study that harms others out of its plan, for good. Needs no server, and does not read the plan's log.

    \b
    Example:  stagetree strike digits-grid-3f9c1a --reason "a million trials"
    """
    from app.domain.terms import Unknown
    from app.events.housekeeping import strike as strike_out

    with open_records(folder_or_default(dir)) as records:
        try:
            done = strike_out(records, id, reason, time.time())
        except Unknown as unknown:
            fail(str(unknown), NOT_FOUND)
    print(f"{id} is struck: its events no longer count" if done else f"{id} was struck before")
    print("A process that is still busy with it must be restarted.")


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
