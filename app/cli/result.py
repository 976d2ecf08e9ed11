"""The printed result of a study: the best trials, its cost and savings, and its failures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from app.cli.output import escape_control, one_line, plural, print_table, result_cells, short_hp
from app.service.views.trial_order import sort_trials
from stagetree.text import RANKED_LAST, duration, mark_sentence, mark_word, percent, unread_text

Json = dict[str, Any]
BEST = 5
TRACEBACK_LINES = 20
"""The lines of the first traceback."""

TRIALS_NAMED = 8
"""The most failed trials that are listed for one error."""

PARTS = {
    "unfinished": "not trained",
    "stopped_early": "stopped early",
    "shared": "shared by trials of the study",
    "known": "known from other studies",
    "repeated": "repeated: a later trial parts where no state was kept",
    "retried": "retried after errors",
    "lost": "trained again: lost with a worker",
    "struck": "struck, since the trainer is not exact, and done again",
}
OF_ISOLATED = {"repeated": "repeated: the trainer is not exact, so a longer trial begins anew"}
AGAIN = ("repeated", "retried", "lost", "struck")
"""These are added; the others are subtracted."""


def print_result(study: Json) -> None:
    """Print the story, the best trials, the cost, and the study's exactness."""
    print(*map(one_line, study["story"]["lines"]), sep="\n", end="\n\n")
    if study.get("error") and not study["cost"]["run"] + study["cost"]["known"]:
        print(f"error   {escape_control(study['error'])}")  # nothing was trained: the rest would be zeros
        print_notes(study.get("notes", ()))
        return
    if study["best"]:
        print_best(study)
        print()
    print_cost(study)
    print(f"time    {duration(study['wall_seconds'])} in all, {duration(study['gpu_seconds'])} on the slots")
    if packing := study.get("packing"):
        if "chosen" in packing:
            print(f"packing auto: {one_line(packing['chosen'])}")
        for each in packing["devices"]:
            print(f"packing {packing_text(each, packing['at_once'])}")
            if draws := each.get("other_draws"):
                print(f"packing `{one_line(draws)}` of the model draws other random numbers in a pack than alone")
    for each in study.get("gpu_sharing") or ():
        print(f"sharing {sharing_text(each)}")
    print_begins(study)
    for each in study.get("not_exact", ()):
        print(f"not exact: {one_line(each)}")
    print_exactness(study)
    for name in study.get("unread", ()):
        print(f"not read {one_line(unread_text([name]))}; see `stagetree check`")
    if study.get("ending"):
        print(f"ended   {one_line(study['ending'])}")
    if study.get("error"):
        print(f"error   {escape_control(study['error'])}")
    print_notes(study.get("notes", ()))


def print_exactness(study: Json) -> None:
    """Print the study's exactness on one line."""
    exactness = study["exactness"]
    if text := exactness["text"]:
        is_to_audit = exactness["verdict"] == "unchecked" and not (study.get("packing") or {}).get("width")
        audit = f"; stagetree audit {study['study']} compares the rest" if is_to_audit else ""
        print(f"exact   {one_line(text)}{audit}")


def print_begins(shown: Json) -> None:
    """Print the weights that a study or a trial begins from, if any."""
    if begins := shown.get("begins"):
        print(f"begins  {one_line(begins['text'].removeprefix('begins '))}")


def print_notes(notes: Iterable[Json]) -> None:
    """Print each note on a line."""
    for note in notes:
        about = "" if note["trial"] is None else f"trial {note['trial']}: "
        print(f"note    {about}{one_line(note['text'])}")


def packing_text(on: Json, at_once: float | None) -> str:
    """The speed-up of packs on a kind of device. at_once: the mean number of trials in a pack; None for full packs."""
    if "refusal" in on:
        return f"trained one by one on {one_line(on['device'])}: {one_line(on['refusal'])}"
    lanes = on["lanes"] if at_once is None else at_once
    full = f"{lanes} of {on['lanes']} lanes had a trial on {one_line(on['device'])}"
    return f"{full}: {on['times_faster']} times as fast as alone{_better(on.get('better'))}"


def _better(other: Json | None) -> str:
    """The speed-up with a better width, if there is one."""
    if other is None:
        return ""
    if not other["packing"]:
        return ", which is slower: it would be faster without `packing`"
    return f"; with `packing: {other['packing']}` it would be {other['times_faster']} times"


def sharing_text(on: Json) -> str:
    """The slowdown and the gain of sharing a GPU."""
    slower = "" if on["gain"] >= 1 else ", which is slower: fewer --slots-per-gpu are better"
    together = f"so together they train {on['gain']} times as fast as one{slower}"
    return f"{on['slots']} slots on {one_line(on['gpu'])}: a step takes {on['times_slower']} times as long, {together}"


def print_best(study: Json) -> None:
    """Print the best trials, and below them the hyper-parameters that all trials share."""
    if study.get("metrics"):
        _print_front(study)
        return
    keys = ("cooldown_of", "merge_of")
    trunks = {trial[key] for trial in study["trials"] for key in keys if key in trial}  # judged by these trials alone
    judged = (trial for trial in study["trials"] if trial["trial"] not in trunks and not trial.get("violation"))
    best = sort_trials([trial for trial in judged if trial["value"] is not None], "value", study["mode"])[:BEST]
    if not best:
        _print_broken(study)
        return
    common, mark_of = common_hp(study["trials"]), mark_cells(best)
    some_failed = any(trial["state"] == RANKED_LAST for trial in best)
    rows = [
        (
            trial["trial"],
            *result_cells(trial[study["value"]]),
            *[trial["state"]] * some_failed,
            *mark_of(trial),
            short_hp(varying_hp(trial["hp"], common)),
        )
        for trial in best
    ]
    more = [*["state"] * some_failed, *["mark"] * any(map(value_mark, best))]
    print_table(("trial", study["metric"], "step", *more, "hyper-parameters"), rows)
    if common:
        print(f"all trials: {one_line(short_hp(common))}")


def _print_front(study: Json) -> None:
    """Print trials of the Pareto front with all metrics, the first ones spread over it."""
    if not study["front"]:
        _print_broken(study)
        return
    names, common, shown = list(study["front"][0]["metrics"]), common_hp(study["trials"]), study["front"][:BEST]
    mark_of = mark_cells(shown)
    rows = [
        (
            best["trial"],
            *best["metrics"].values(),
            best["steps"],
            *mark_of(best),
            short_hp(varying_hp(best["hp"], common)),
        )
        for best in shown
    ]
    print_table(("trial", *names, "step", *["mark"] * any(map(value_mark, shown)), "hyper-parameters"), rows)
    some = f", of which {len(rows)} are shown" if len(rows) < len(study["front"]) else ""
    print(f"Pareto front: {plural(len(study['front']), 'trial')}{some}")
    if common:
        print(f"all trials: {one_line(short_hp(common))}")


def _print_broken(study: Json) -> None:
    """Print which trial is closest to the constraints if none satisfies them."""
    if study["best"]:
        constraints = one_line(" and ".join(study["constraints"]))
        print(f"no trial satisfies {constraints}; trial {study['best']['trial']} is closest")


def value_mark(trial: Json) -> str:
    """The mark of a trial's value; empty without one."""
    return trial.get("exactness", "") if trial["value"] is not None else ""


def mark_cells(trials: Iterable[Json]) -> Callable[[Json], list[str]]:
    """A function to a trial's cells in the column of marks. The column is left out if no trial has a mark."""
    if not any(map(value_mark, trials)):
        return lambda trial: []
    return lambda trial: [mark_word(value_mark(trial))]


def print_mark(trial: int, mark: str) -> None:
    """Print the mark of a trial whose weights were written, if it has one."""
    if mark:
        print(f"{mark_sentence(f'Trial {trial}', one_line(mark))}.", file=sys.stderr)


def judged_columns(study: Json) -> tuple[str, ...]:
    """The columns of a table of trials for further metrics and the Pareto front."""
    first = study["best"]["metrics"] if (study["best"] or {}).get("metrics") else {}
    return tuple(name for name in first if name != study["metric"]) + (("Pareto",) if first else ())


def judged_values(trial: Json, columns: tuple[str, ...]) -> list[Any]:
    """The values of these columns. A star marks the Pareto front; violations of constraints are named."""
    metrics = trial.get("metrics") or {}
    mark = "*" if trial.get("front") else "violates a constraint" if trial.get("violation") else ""
    return [*(metrics.get(name) for name in columns[:-1]), *([mark] if columns else [])]


def common_hp(trials: list[Json]) -> Json:
    """The hyper-parameters with equal values in all trials."""
    from stagetree.sequences import is_same_value

    if len(trials) < 2:
        return {}
    first = trials[0]["hp"]
    return {
        name: value
        for name, value in first.items()
        if all(is_same_value(trial["hp"].get(name), value) for trial in trials)
    }


def varying_hp(hp: Json, common: Json) -> Json:
    """The others."""
    return {name: value for name, value in hp.items() if name not in common}


def print_cost(study: Json) -> None:
    """Print the waterfall of steps, from training every trial alone to the steps run."""
    cost = study["cost"]
    width = len(str(cost["alone"])) + 2
    print(f"steps   {cost['alone']:>{width}}  if every trial were trained alone to the end")
    is_isolated = study["exactness"]["isolated"]
    for name, words in (PARTS | (OF_ISOLATED if is_isolated else {})).items():
        if cost.get(name):
            signed = f"{'+' if name in AGAIN else '-'} {cost[name]}"
            print(f"        {signed:>{width}}  {words}")
    print(f"        {cost['run']:>{width}}  run")
    if proofs := study["exactness"]["proof_steps"]:
        print(f"        {f'+ {proofs}':>{width}}  verification steps, not counted above")
    for number, line in enumerate(saved_lines(study)):
        print(f"{'' if number else 'saved':<7} {line}")


def saved_lines(study: Json) -> Iterator[str]:
    """The savings by sharing and by early stopping, never as one number."""
    cost = study["cost"]
    if cost.get("saved_by_sharing"):
        seconds = study["story"]["seconds_by_sharing"]
        time = f", about {duration(seconds)} of slot time" if seconds >= 1 else ""
        share, of = (
            percent(cost["saved_by_sharing"]),
            f"{cost['spared']} of the {cost['taken']} steps that the trials took",
        )
        yield f"{share} by sharing: {of}{time}"
    if cost.get("saved_by_stopping"):
        whole = cost["taken"] + cost["stopped_early"]
        share, of = percent(cost["saved_by_stopping"]), f"{cost['stopped_early']} of {whole} steps to every trial's end"
        yield f"{share} by early stopping: {of}"


def failure_lines(study: Json) -> Iterator[str]:
    """Failed trials, grouped by equal errors, a line for each error."""
    for group in study["failures"]:
        yield f"{one_line(group['text'])} ({trials_text(group['trials'])})"


def trials_text(numbers: list[int]) -> str:
    """Trial numbers: trial 3, or trials 3, 5, 6 and 2 more."""
    rest = len(numbers) - TRIALS_NAMED
    shown = ", ".join(map(str, numbers[:TRIALS_NAMED])) + (f" and {rest} more" if rest > 0 else "")
    return f"trial{'s' if len(numbers) > 1 else ''} {shown}"


def print_failures(study: Json, first: Json | None, where: str) -> None:
    """Print the failed trials and their errors, and the end of the first traceback. where: options of commands."""
    failed = study["counts"]["failed"]
    if not failed or first is None:
        return
    print(f"failed  {failed} of {plural(len(study['trials']), 'trial')}")
    for line in failure_lines(study):
        print(f"        {line}")
    print(f"        the first is trial {first['trial']}:")
    lines = escape_control(first["failure"]["error"]).strip().splitlines()
    for line in ["..."] * (len(lines) > TRACEBACK_LINES) + lines[-TRACEBACK_LINES:]:
        print(f"        {line}")
    whole = "the whole traceback" if len(lines) > TRACEBACK_LINES else "more of it"
    print(f"        {whole}: stagetree trial {study['study']} {first['trial']}{where}")
    if failed > 1:
        print(f"        all failed trials: stagetree trials {study['study']} --state failed{where}")
