"""`stagetree trials`: the trials of a study in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import ListOutput, Server, Store, StudyId
from app.cli.output import ListFormat, one_line, print_list, ranges_text, result_cells
from app.cli.result import common_hp, failure_lines, judged_columns, judged_values, mark_cells, value_mark, varying_hp
from app.cli.service import open_study
from app.cli.studies import Limit, States, check_states
from app.cli.trial import PREDICTION_COLUMNS, prediction_cell
from app.domain.terms import TrialDisplayState
from app.service.views.trial_order import KEYS, PARAMETER, flatten, sort_trials
from stagetree.text import short_hp

Json = dict[str, Any]


def trials(
    id: StudyId,
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="KEY", help=f"Sort by {', '.join(KEYS)}, or hp.NAME; -KEY reverses the order."),
    ] = "trial",
    state: States = None,
    limit: Limit = None,
    server: Server = None,
    dir: Store = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """List the trials of a study, each with its state, its value, and the step of that value.

    \b
    Example:  stagetree trials last --sort value --limit 5
    """
    check_states(state, get_args(TrialDisplayState))
    check_sort(sort)
    with open_study(id, server, dir) as (service, name):
        study = service.client.study(name, trials=False)
        every = list(service.client.trials(name))
    check_sort(sort, every)
    shown = [trial for trial in every if not state or trial["state"] in state]
    shown = sort_trials(shown, sort, study["mode"])[:limit]
    print_list(shown, output, *_table(study, shown, every))
    if output is ListFormat.table:
        _print_marks(shown)
        if noise := study["story"]["noise"]:
            print(one_line(noise))
    if output is ListFormat.table and study["counts"]["failed"]:
        print()
        for line in failure_lines(study):
            print(f"failed  {line}")


def _print_marks(trials: list[Json]) -> None:
    """Print each mark once, with all trials that have it."""
    marked: dict[str, list[int]] = {}
    for trial in trials:
        if mark := value_mark(trial):
            marked.setdefault(mark, []).append(trial["trial"])
    for text, numbers in marked.items():
        some = f"trial{'s' if len(numbers) > 1 else ''} {ranges_text(numbers)}"
        of = some if len(numbers) < len(trials) else "all of them"
        print(f"{of}: {one_line(text)}")


def _table(study: Json, shown: list[Json], every: list[Json]) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
    """The header and rows of the listed trials, without hyper-parameters that all trials share."""
    results = (study["value"], "best" if study["value"] == "last" else "last")
    predicted = PREDICTION_COLUMNS if any(trial.get("prediction") for trial in every) else {}
    common, judged, mark_of = common_hp(every), judged_columns(study), mark_cells(shown)

    def row(trial: Json) -> tuple[Any, ...]:
        numbers = [each for name in results for each in result_cells(trial[name])]
        told = [prediction_cell(trial.get("prediction") or {}, name) for name in predicted]
        middle = (*numbers, *told, *judged_values(trial, judged))
        return trial["trial"], *middle, *mark_of(trial), trial["standing"], short_hp(varying_hp(trial["hp"], common))

    marked = ["mark"] * any(map(value_mark, shown))
    heads = (study["metric"], "step", results[1], "step", *predicted.values(), *judged, *marked)
    return ("trial", *heads, "status", "hyper-parameters"), map(row, shown)


def check_sort(sort: str, trials: Sequence[Json] | None = None) -> None:
    """Exit with a message if trials have no such sort key. trials: for the names of hyper-parameters."""
    from stagetree.sequences import did_you_mean

    key = sort.removeprefix("-")
    if trials is None and key.startswith(PARAMETER):
        return
    names = [*KEYS, *sorted({name for trial in trials or () for name in flatten(trial["hp"], PARAMETER)})]
    if key not in names:
        also = "" if trials else f", or a hyper-parameter such as {PARAMETER}lr"
        fail(f"--sort: must be one of {', '.join(names)}{also}, got {sort}{did_you_mean(key, names)}", USAGE)
