"""The printed result of a study: the best trials, its cost and savings, and its failures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from app.cli.output import escape_control, one_line, plural, print_table, result_cells
from app.service.views.trial_order import sort_trials
from stagetree.text import RANKED_LAST, duration, mark_sentence, mark_word, percent, short_hp, unread_text

Json = dict[str, Any]
BEST = 5
MOST_LINES = 12
"""The most lines of a study's summary, blank ones included. Errors of a study without a result come on top."""

TRACEBACK_LINES = 20
"""The lines of the first traceback."""

LOG_HEADER = "--- "
"""The beginning of the lines that workers write between the stages of a trial's log."""

TRIALS_NAMED = 8
"""The most failed trials that are listed for one error."""

PARTS = {
    "unfinished": "not trained",
    "stopped_early": "stopped early",
    "shared": "shared",
    "known": "known from other studies",
    "repeated": "repeated, since no state was kept",
    "retried": "retried after errors",
    "lost": "lost with a worker",
    "struck": "struck, since the trainer is not exact",
}
OF_ISOLATED = {"repeated": "repeated, since the trainer is not exact"}
AGAIN = ("repeated", "retried", "lost", "struck")
"""These are added; the others are subtracted."""


def print_result(study: Json, where: str = "") -> None:
    """Print the error of a failed study; then the best trials, the cost and the exactness.

    where: the options that lead other commands to the study.
    """
    if study.get("error"):
        print(f"error   {escape_control(study['error'])}")
        if not study["cost"]["run"] + study["cost"]["known"]:  # nothing was trained: the rest would be zeros
            for line in note_lines(study.get("notes", ())):
                print(line)
            return
        print()
    best, savings, *notes = map(one_line, study["story"]["lines"])
    story = [best, *notes, *([] if any(saved_texts(study)) else [savings])]  # savings are among the facts
    facts = list(_fact_lines(study, where))
    print(*story, sep="\n", end="\n\n")
    room = MOST_LINES - len(story) - 1
    if study["best"]:
        print_best(study, most := max(LEAST, room - 1 - len(facts)))
        print()
        room -= most + 1
    if (rest := len(facts) - room) > 0:
        facts = [*facts[: room - 1], f"more    {rest + 1} more lines: stagetree watch {study['study']} -o json"]
    print(*facts, sep="\n")


LEAST = 3
"""The fewest lines of the table of the best trials: its header, a trial, and what all trials share."""


def _fact_lines(study: Json, where: str) -> Iterator[str]:
    """The cost and the exactness, and then what only some studies have. Each line begins with its subject."""
    yield f"steps   {cost_text(study)}"
    if saved := list(saved_texts(study)):
        yield f"saved   {'; '.join(saved)}"
    yield f"time    {duration(study['wall_seconds'])} in all, {duration(study['gpu_seconds'])} on the slots"
    yield from exactness_lines(study)
    if study["best"] and study["failures"]:
        yield from _failed_lines(study, where)
    if study.get("ending"):
        yield f"ended   {one_line(study['ending'])}"
    yield from note_lines(study.get("notes", ()))
    for each in study.get("not_exact", ()):
        yield f"not exact: {one_line(each)}"
    for name in study.get("unread", ()):
        yield f"not read {one_line(unread_text([name]))}; see `stagetree check`"
    yield from packing_lines(study.get("packing") or {})
    for each in study.get("gpu_sharing") or ():
        yield f"sharing {sharing_text(each)}"
    if begins := study.get("begins"):
        yield f"begins  {one_line(begins['text'].removeprefix('begins '))}"


def exactness_lines(study: Json) -> Iterator[str]:
    """The study's exactness on one line, if there is something to say."""
    exactness = study["exactness"]
    if text := exactness["text"]:
        is_to_audit = exactness["verdict"] == "unchecked" and not (study.get("packing") or {}).get("width")
        audit = f"; stagetree audit {study['study']} compares the rest" if is_to_audit else ""
        yield f"exact   {one_line(text)}{audit}"


def note_lines(notes: Iterable[Json]) -> Iterator[str]:
    """Each note on a line."""
    for note in notes:
        about = "" if note["trial"] is None else f"trial {note['trial']}: "
        yield f"note    {about}{one_line(note['text'])}"


def packing_lines(packing: Json) -> Iterator[str]:
    """The chosen width of packs, and their speed on each kind of device."""
    if "chosen" in packing:
        yield f"packing auto: {one_line(packing['chosen'])}"
    for each in packing.get("devices", ()):
        yield f"packing {packing_text(each, packing['at_once'])}"
        if draws := each.get("other_draws"):
            yield f"packing `{one_line(draws)}` of the model draws other random numbers in a pack than alone"


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


def print_best(study: Json, most: int) -> None:
    """Print the best trials, and below them what all trials share, in at most `most` lines, the header included.

    Of a study with several metrics or constraints they are those of the Pareto front, the first ones spread over it.
    """
    is_front = bool(study.get("metrics"))
    best = study["front"] if is_front else _sorted_by_value(study)
    if not best:
        if study["best"]:
            constraints = one_line(" and ".join(study["constraints"]))
            print(f"no trial satisfies {constraints}; trial {study['best']['trial']} is closest")
        return
    common = common_hp(study["trials"])
    shown = best[: max(1, min(BEST, most - 1 - is_front - bool(common)))]
    mark_of = mark_cells(shown)
    some_failed = any(each.get("state") == RANKED_LAST for each in shown)
    rows = []
    for each in shown:
        numbers = (*each["metrics"].values(), each["steps"]) if is_front else result_cells(each[study["value"]])
        more = [*[each.get("state")] * some_failed, *mark_of(each)]
        rows.append((each["trial"], *numbers, *more, short_hp(varying_hp(each["hp"], common))))
    names = list(best[0]["metrics"]) if is_front else [study["metric"]]
    heads = [*["state"] * some_failed, *["mark"] * any(map(value_mark, shown))]
    print_table(("trial", *names, "step", *heads, "hyper-parameters"), rows)
    if is_front:
        some = f", of which {len(rows)} are shown" if len(rows) < len(best) else ""
        print(f"Pareto front: {plural(len(best), 'trial')}{some}")
    if common:
        print(f"all trials: {one_line(short_hp(common))}")


def _sorted_by_value(study: Json) -> list[Json]:
    """The trials with a value, the best first, without trunks, which are judged by the trials that share them."""
    trunks = {trial[key] for trial in study["trials"] for key in ("cooldown_of", "merge_of") if key in trial}
    judged = (trial for trial in study["trials"] if trial["trial"] not in trunks and not trial.get("violation"))
    return sort_trials([trial for trial in judged if trial["value"] is not None], "value", study["mode"])


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


def cost_text(study: Json) -> str:
    """The steps run, and the way there from training every trial alone to the end."""
    cost, words = study["cost"], PARTS | (OF_ISOLATED if study["exactness"]["isolated"] else {})
    parts = [f"{'+' if name in AGAIN else '-'} {cost[name]} {words[name]}" for name in words if cost.get(name)]
    alone = f"{cost['alone']} if each trial were trained alone {' '.join(parts)} = " if parts else ""
    proofs = study["exactness"]["proof_steps"]
    return f"{alone}{cost['run']} run" + (f", and {plural(proofs, 'verification step')}" if proofs else "")


def saved_texts(study: Json) -> Iterator[str]:
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


PRINTED_LINES = 10
"""The last lines that are shown of what a failed check printed."""


def print_check_output(study: Json, log: str, where: str) -> None:
    """Print the end of what the trainer printed in its failed check. where: options of commands."""
    lines = [line for line in escape_control(log).splitlines() if not line.startswith(LOG_HEADER)]
    if not lines:
        return
    whole = f"stagetree logs {study['study']} {study['failed_check']}{where}"
    print(f"\nprinted in the check{f', the last {PRINTED_LINES} lines' if len(lines) > PRINTED_LINES else ''}: {whole}")
    for line in lines[-PRINTED_LINES:]:
        print(f"        {line}")


GROUPS_NAMED = 2
"""The most groups of equal errors in the summary of a study with results."""


def _failed_lines(study: Json, where: str) -> Iterator[str]:
    """How many trials of a study with results failed, and the most frequent errors."""
    groups, id = list(failure_lines(study)), study["study"]
    count = f"{study['counts']['failed']} of {plural(len(study['trials']), 'trial')}"
    yield f"failed  {count}; a traceback: stagetree trial {id} {study['failures'][0]['trials'][0]}{where}"
    for line in groups[:GROUPS_NAMED]:
        yield f"        {line}"
    if (rest := len(groups) - GROUPS_NAMED) > 0:
        yield f"        {plural(rest, 'other error')}: stagetree trials {id} --state failed{where}"


def print_failures(study: Json, first: Json, where: str) -> None:
    """Print the failed trials of a study without a result, their errors, and the end of the first traceback.

    where: the options that lead other commands to the study.
    """
    failed = study["counts"]["failed"]
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
