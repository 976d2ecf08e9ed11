"""Commands that pause, resume or change a study; and one for operators, to strike it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from app.cli.errors import NOT_FOUND, fail
from app.cli.options import Output, Server, Store, StudyId, TrialNumber, folder_or_default, open_records
from app.cli.output import Format, plural, print_json
from app.cli.study_annotations import note as note
from app.cli.study_annotations import sampler as sampler
from app.cli.study_annotations import suggest as suggest
from app.cli.study_annotations import tag as tag


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
    """Cancel a study for good; its results so far stay.

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
    """Retry a failed trial, for all the steps that it was asked for; a study that is over is reopened for that.

    The tuner has already decided without the trial, and does not get its new results.

    \b
    Example:  stagetree retry last 3
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, study):
        answer = service.client.retry_trial(study, trial)
    if output is Format.json:
        print_json(answer)
    else:
        print(f"trial {trial} of {study} is retried")


Values = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter, written as in a study file; may be repeated."),
]
StepsInAll = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="The number of steps in all.")]


def branch(
    id: StudyId,
    trial: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of the trial to branch off.")],
    at: Annotated[int, typer.Option("--at", metavar="S", min=1, help="The last step that both trials share.")],
    steps: StepsInAll,
    set: Values,
    preview: Annotated[bool, typer.Option("--preview", help="Only print the cost; train nothing.")] = False,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Branch a new trial off another one, with other values from a step on; a study that is over is reopened for it.

    A sequence in --set has its step 0 where the new trial branches off. Shared steps are not trained again.

    \b
    Example:  stagetree branch last 3 --at 1000 --steps 1200 --set lr=0.01
    """
    from app.cli import stacks
    from app.cli.study_files import changes_of

    request = {"trial": trial, "at": at, "steps": steps, "hp": changes_of(set, "--set")}
    with stacks.server_of_study(server, id) as (service, study):
        answer = service.client.branch_trial(study, request, preview=preview)
    if output is Format.json:
        print_json(answer)
        return
    again = f", and {answer['again']} are repeated, since no state is kept there" if answer["again"] else ""
    print(f"{plural(answer['new'], 'new step')} of {answer['steps']}: {answer['shared']} are shared{again}")
    if not preview:
        print(f"trial {answer['trial']['trial']} branches off trial {trial} at step {at}")


def soup(
    id: StudyId,
    trials: Annotated[str, typer.Option("--trials", metavar="N,N,...", help="The trials to average.")] = "",
    best: Annotated[int | None, typer.Option("--best", metavar="K", min=1, help="Average the K best trials.")] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="K", min=2, help="Average the last K states that are kept of one trial."),
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", metavar="W,W,...", help="The weight of each; by default equal.")
    ] = "",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Train the average further, to N steps in all.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter from there on; may be repeated."),
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only print the cost; train nothing.")] = False,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Average the weights of trials into a new trial, which is evaluated; a study that is over is reopened for it.

    \b
    Example:  stagetree soup last --best 5
    """
    from app.cli import stacks
    from app.cli.study_files import changes_of

    request: dict[str, Any] = {"trials": _numbers(trials, int, "--trials"), "best": best, "last": last, "steps": steps}
    request |= {"weights": _numbers(weights, float, "--weights"), "hp": changes_of(set or [], "--set")}
    with stacks.server_of_study(server, id) as (service, study):
        answer = service.client.average_trials(study, request, preview=preview)
    if output is Format.json:
        print_json(answer)
        return
    again = f", and {answer['again']} repeated for states that are not kept" if answer["again"] else ""
    print(f"{plural(answer['new'], 'new step')}{again}")
    if not preview:
        print(f"trial {answer['trial']['trial']} is the average of {_states(answer['trial']['average_of'])}")


def _states(parts: Sequence[Mapping[str, Any]]) -> str:
    """Trials 3 at step 40 (0.98), 5 at step 40 (0.97, 3 repeats)."""
    counts = Counter((part["trial"], part["step"], _value(part)) for part in parts)
    texts = (
        f"{trial} at step {step} ({value}{f', {count} repeats' if count > 1 else ''})"
        for (trial, step, value), count in counts.items()
    )
    return f"{'trials' if len(counts) > 1 else 'trial'} {', '.join(texts)}"


Number = TypeVar("Number", int, float)


def _numbers(text: str, kind: type[Number], option: str) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        raise typer.BadParameter(f"{option} must be numbers with commas between them, got {text!r}") from None


def _value(part: Mapping[str, Any]) -> str:
    return "no value yet" if part["value"] is None else f"{part['value']:.6g}"


def add(id: StudyId, steps: StepsInAll, set: Values, server: Server = None, output: Output = Format.table) -> None:
    """Add a trial of your own to a study, beside the trials of its tuner.

    \b
    Example:  stagetree trials add last --set lr=0.1 --set bs=64 --steps 40
    """
    from app.cli.study_files import changes_of

    _ask({"hp": changes_of(set, "--set"), "steps": steps}, id, server, output)


def extend(
    id: StudyId, trial: TrialNumber, steps: StepsInAll, server: Server = None, output: Output = Format.table
) -> None:
    """Train a trial of your own longer, from its last step.

    \b
    Example:  stagetree trials extend last 12 --steps 80
    """
    _ask({"trial": trial, "steps": steps}, id, server, output)


def stop(id: StudyId, trial: TrialNumber, server: Server = None) -> None:
    """Cancel a trial; steps that others share are still trained.

    \b
    Example:  stagetree trials stop last 12
    """
    from app.cli import stacks

    with stacks.server_of_study(server, id) as (service, study):
        service.client.cancel_trial(study, trial)
    print(f"trial {trial} of {study} is cancelled")


def _ask(request: dict[str, Any], id: str, server: str | None, output: Format) -> None:
    from app.cli import stacks

    with stacks.server_of_study(server, id) as (service, study):
        (answer,) = service.client.ask_trials(study, [request])
    if output is Format.json:
        print_json(answer)
    else:
        print(f"trial {answer['trial']} of {study} is asked for {plural(answer['steps'], 'step')}")


def _change(verb: str, id: str, server: str | None, output: Format, *arguments: Any) -> None:
    from app.cli import stacks

    with stacks.server_of_study(server, id) as (service, study):
        answer = getattr(service.client, verb)(study, *arguments)
    if output is Format.json:
        print_json(answer)
    else:
        print(f"{answer['study']} is {answer['state']}")


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
