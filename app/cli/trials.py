"""Commands that look at studies, trials, slots and trainers: on a server, or in a store without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import typer

from app.cli.errors import DONE, FAILED
from app.cli.options import DEFAULT_DIR, ListOutput, OrBest, Output, Server, Store, StudyId
from app.cli.output import (
    Format,
    ListFormat,
    error_text,
    harmless,
    one_line,
    print_json,
    print_list,
    ranges,
    result_cells,
    short_hp,
    slot_row,
)
from app.cli.studies import Limit, States, check_sort, check_states
from app.cli.studies import studies as studies
from app.cli.study_lookup import trial_number
from app.cli.trial_text import PREDICTED, foretold, print_trial
from app.domain.terms import TrialDisplayState
from app.service.views.trial_order import KEYS, ordered

Json = dict[str, Any]
Release = Annotated[
    str | None, typer.Option("--release", metavar="SLOT", help="End the quarantine of this slot first.")
]


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
    from app.cli import stacks
    from app.cli.result import failure_lines

    check_states(state, get_args(TrialDisplayState))
    check_sort(sort)
    with stacks.reading_study(id, server, dir) as (service, name):
        study = service.client.study(name, trials=False)
        every = list(service.client.trials(name))
    check_sort(sort, every)
    shown = [trial for trial in every if not state or trial["state"] in state]
    shown = ordered(shown, sort, study["mode"])[:limit]
    print_list(shown, output, *_table(study, shown, every))
    if output is ListFormat.table:
        _print_marks(shown)
        _print_noise(study)
    if output is ListFormat.table and study["counts"]["failed"]:
        print()
        for line in failure_lines(study):
            print(f"failed  {line}")


def _print_marks(trials: list[Json]) -> None:
    """Each mark beside the numbers of trials, once for all of them that have it."""
    from app.cli.result import shown_mark

    marked: dict[str, list[int]] = {}
    for trial in trials:
        if mark := shown_mark(trial):
            marked.setdefault(mark, []).append(trial["trial"])
    for text, numbers in marked.items():
        some = f"trial{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
        of = some if len(numbers) < len(trials) else "all of them"
        print(f"{of}: {one_line(text)}")


def _print_noise(study: Json) -> None:
    """That others may be as good as the best trial, where the study says so."""
    if noise := (study.get("story") or {}).get("noise"):  # an older server says nothing
        print(one_line(noise))


def _table(study: Json, shown: list[Json], every: list[Json]) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
    """The heading and the rows of the trials that are shown, without what all trials have in common."""
    from app.cli.result import common_hp, judged_columns, judged_values, mark_cells, shown_mark, varied

    results = (study["value"], "best" if study["value"] == "last" else "last")
    predicted = PREDICTED if any(trial.get("prediction") for trial in every) else {}
    common, judged, mark_of = common_hp(every), judged_columns(study), mark_cells(shown)

    def row(trial: Json) -> tuple[Any, ...]:
        numbers = [each for name in results for each in result_cells(trial[name])]
        told = [foretold(trial.get("prediction") or {}, name) for name in predicted]
        middle = (*numbers, *told, *judged_values(trial, judged))
        return trial["trial"], *middle, *mark_of(trial), trial["standing"], short_hp(varied(trial["hp"], common))

    marked = ["mark"] * any(map(shown_mark, shown))
    heads = (study["metric"], "step", results[1], "step", *predicted.values(), *judged, *marked)
    return ("trial", *heads, "standing", "hyper-parameters"), map(row, shown)


def trial(
    id: StudyId, number: OrBest = None, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Show one trial: its standing, why it was promoted or stopped, its curve and, if it failed, the traceback.

    By default it is the best one.

    \b
    Example:  stagetree trial last 3
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, name):
        document = service.client.trial(name, trial_number(service.client, name, number))
    print_json(document) if output is Format.json else print_trial(name, document)


def logs(id: StudyId, number: OrBest = None, server: Server = None, dir: Store = None) -> None:
    """Print the output of a trial's training, by default of the best one's.

    The output of a shared stage is in the log of the trial that the stage was run for.

    \b
    Example:  stagetree logs last 3
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, name):
        print(harmless(service.client.trial_log(name, trial_number(service.client, name, number))).rstrip("\n"))


def slots(
    server: Server = None, dir: Store = None, release: Release = None, output: ListOutput = ListFormat.table
) -> None:
    """List the slots, what each of them trains, and how far the estimates of its stages were off.

    \b
    Example:  stagetree slots
    """
    from app.cli import stacks

    with stacks.reading(server, dir) as service:
        if release is not None:
            service.client.release_slot(release)
        listed = service.client.slots(estimates=True)
    more = ("estimates off",) if any(slot.get("estimate_error") for slot in listed) else ()
    rows = [(*slot_row(slot), *(error_text(slot) for _ in more)) for slot in listed]
    print_list(listed, output, ("slot", "device", "host", "state", "study", "steps", *more), rows)


def trainers(
    server: Server = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--trainers", metavar="FILE.py", help="A Python file with trainers; may be repeated."),
    ] = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """List the trainers of a server or, without one, those that `run` would find here.

    \b
    Example:  stagetree trainers --trainers trainer.py
    """

    from app.cli import stacks
    from app.cli.study_lookup import server_url
    from app.registry import describe

    if url := None if files else server_url(server):
        with stacks.server(url) as service:
            offered = service.client.trainers()
    else:
        described = describe(stacks.trainer_files(files or []))
        offered = [{"name": name, "version": version} for name, version in sorted(described.items())]
    print_list(offered, output, ("trainer", "version"), [(each["name"], each["version"][:12]) for each in offered])


def doctor(server: Server = None, output: Output = Format.table) -> None:
    """Check this installation: what is here, what is missing, and what to do about it.

    \b
    Example:  stagetree doctor
    """
    from app.cli import doctor
    from app.cli.study_lookup import server_url

    findings = doctor.examine(server_url(server), DEFAULT_DIR)
    if output is Format.json:
        print_json([each._asdict() for each in findings])
    else:
        for each in findings:
            print(f"{'ok ' if each.ok else 'BAD'}  {each.what:<14} {one_line(each.detail)}")
    raise typer.Exit(DONE if all(each.ok for each in findings) else FAILED)


def _when(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
