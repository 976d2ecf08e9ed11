"""`stagetree branch` and `soup`: trials made of other trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from app.cli.options import Output, Server, StepsInAll, StudyId, Values
from app.cli.output import Format, plural, print_json
from app.cli.service import open_study_on_server
from app.cli.study_files import changes_of

Json = Mapping[str, Any]

Preview = Annotated[bool, typer.Option("--preview", help="Only print the cost; train nothing.")]


def branch(
    id: StudyId,
    trial: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of the trial to branch off.")],
    at: Annotated[int, typer.Option("--at", metavar="S", min=1, help="The last step that both trials share.")],
    steps: StepsInAll,
    set: Values,
    preview: Preview = False,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Branch a new trial off another one, with other values from a step on; a study that is over is reopened for it.

    A sequence in --set has its step 0 where the new trial branches off. Shared steps are not trained again.

    \b
    Example:  stagetree branch last 3 --at 1000 --steps 1200 --set lr=0.01
    """
    request = {"trial": trial, "at": at, "steps": steps, "hp": changes_of(set, "--set")}
    with open_study_on_server(server, id) as (service, study):
        answer = service.client.branch_trial(study, request, preview=preview)
    again = f", and {answer['again']} are repeated, since no state is kept there" if answer["again"] else ""
    cost = f" of {answer['steps']}: {answer['shared']} are shared{again}"
    _print_answer(answer, output, cost, lambda new: f"branches off trial {trial} at step {at}")


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
    preview: Preview = False,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Average the weights of trials into a new trial, which is evaluated; a study that is over is reopened for it.

    \b
    Example:  stagetree soup last --best 5
    """
    request: dict[str, Any] = {"trials": _numbers(trials, int, "--trials"), "best": best, "last": last, "steps": steps}
    request |= {"weights": _numbers(weights, float, "--weights"), "hp": changes_of(set or [], "--set")}
    with open_study_on_server(server, id) as (service, study):
        answer = service.client.average_trials(study, request, preview=preview)
    cost = f", and {answer['again']} repeated for states that are not kept" if answer["again"] else ""
    _print_answer(answer, output, cost, lambda new: f"is the average of {_states(new['average_of'])}")


def _print_answer(answer: Json, output: Format, cost: str, describe: Callable[[Json], str]) -> None:
    """cost: follows the number of new steps. describe: how the new trial was made, if it was not only priced."""
    if output is Format.json:
        print_json(answer)
        return
    print(f"{plural(answer['new'], 'new step')}{cost}")
    if new := answer.get("trial"):
        print(f"trial {new['trial']} {describe(new)}")


def _states(parts: Sequence[Json]) -> str:
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


def _value(part: Json) -> str:
    return "no value yet" if part["value"] is None else f"{part['value']:.6g}"
