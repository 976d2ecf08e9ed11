"""`stagetree trial` and `logs`: one trial, its output, and trials of a user beside the tuner's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.options import OrBest, Output, Server, StepsInAll, Store, StudyId, TrialNumber, Values
from app.cli.output import Format, escape_control, number, one_line, plural, print_answer, print_json, print_table
from app.cli.service import open_study, open_study_on_server, trial_number
from app.cli.study_files import changes_of
from stagetree.text import short_hp, value_text


def trial(
    id: StudyId, number: OrBest = None, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Show one trial: its standing, why it was promoted or stopped, its curve and, if it failed, the traceback.

    By default it is the best one.

    \b
    Example:  stagetree trial last 3
    """
    with open_study(id, server, dir) as (service, name):
        document = service.client.trial(name, trial_number(service.client, name, number))
    print_json(document) if output is Format.json else print_trial(name, document)


def logs(
    id: StudyId, number: OrBest = None, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Print the output of a trial's training, by default of the best one's.

    The output of a shared stage is in the log of the trial that the stage was run for.

    \b
    Example:  stagetree logs last 3
    """
    with open_study(id, server, dir) as (service, name):
        shown = trial_number(service.client, name, number)
        log = service.client.trial_log(name, shown)
    print_answer({"study": name, "trial": shown, "log": log}, output, escape_control(log).rstrip("\n"))


def add(id: StudyId, steps: StepsInAll, set: Values, server: Server = None, output: Output = Format.table) -> None:
    """Add a trial of your own to a study, beside the trials of its tuner.

    \b
    Example:  stagetree trial add last --set lr=0.1 --set bs=64 --steps 40
    """
    _ask({"hp": changes_of(set, "--set"), "steps": steps}, id, server, output)


def extend(
    id: StudyId, trial: TrialNumber, steps: StepsInAll, server: Server = None, output: Output = Format.table
) -> None:
    """Train a trial of your own longer, from its last step.

    \b
    Example:  stagetree trial extend last 12 --steps 80
    """
    _ask({"trial": trial, "steps": steps}, id, server, output)


def stop(id: StudyId, trial: TrialNumber, server: Server = None) -> None:
    """Cancel a trial; steps that others share are still trained.

    \b
    Example:  stagetree trial stop last 12
    """
    with open_study_on_server(server, id) as (service, study):
        service.client.cancel_trial(study, trial)
    print(f"trial {trial} of {study} is cancelled")


def _ask(request: dict[str, Any], id: str, server: str | None, output: Format) -> None:
    with open_study_on_server(server, id) as (service, study):
        (answer,) = service.client.ask_trials(study, [request])
    line = f"trial {answer['trial']} of {study} will train for {plural(answer['steps'], 'step')}"
    print_answer(answer, output, line)


Json = dict[str, Any]

PREDICTION_COLUMNS = {"class": "class", "p": "p", "expected_seconds": "seconds to go"}
"""The columns of a tuner's predictions, with their headings."""

NOT_YET = "not yet known"
"""Shown for p before the study has proven it."""


def prediction_cell(prediction: Json, name: str) -> Any:
    """The cell of one of `PREDICTION_COLUMNS`."""
    return NOT_YET if name == "p" and _is_unproven(prediction) else prediction.get(name)


def _is_unproven(prediction: Json) -> bool:
    """Whether a continuing trial was judged before p was proven."""
    return prediction.get("class") in ("promising", "opportunistic") and prediction["p"] is None


DECISIONS = 5
"""The number of last decisions that are printed. Stopping rules decide after each evaluation."""


def print_trial(study: str, trial: Json) -> None:
    """Print a trial with its failure, results and curve."""
    print(f"trial     {trial['trial']} of {study}: {one_line(trial['standing'])}")
    if failure := trial.get("failure"):
        tries = f", tried {failure['tries']} times" if failure.get("tries", 1) > 1 else ""
        traceback = escape_control(failure["error"]).rstrip()
        print(f"\n{failure['kind']} after step {failure['step']}{tries}:\n{traceback}\n")
    takes = "took" if trial["trained"] >= trial["steps"] else "takes"
    print(f"steps     {trial['trained']} trained of {trial['steps']} that the trial {takes}")
    for name in ("last", "best"):
        if trial[name]:
            print(f"{name:<9} {value_text(trial[name])} at step {trial[name]['step']}")
    if trial.get("prediction"):
        print(f"predicted {_prediction_text(trial['prediction'])}")
    print(f"values    {one_line(short_hp(trial['hp']))}")
    if trial.get("begins"):
        print(f"begins    {one_line(trial['begins']['text'].removeprefix('begins '))}")
    if why := start_text(trial["reason"]):
        print(f"started   {one_line(why)}")
    for each in trial.get("decisions", ())[-DECISIONS:]:
        print(f"why       {one_line(each)}")
    mark = trial.get("exactness", "")
    if mark:
        print(f"exact     {one_line(mark)}")
    for note in trial.get("notes", ()):
        print(f"note      {one_line(note['text'])}")
    if trial["curve"]:
        print()
        names = sorted({name for point in trial["curve"] for name in point["metrics"]})
        rows = [(point["step"], *(point["metrics"].get(name) for name in names)) for point in trial["curve"]]
        print_table(("step", *names), rows)


def _prediction_text(prediction: Json) -> str:
    """The tuner's prediction on one line."""
    if _is_unproven(prediction):
        return f"{prediction['class']} at step {prediction['step']}, p {NOT_YET}"
    if prediction["p"] is None:
        return f"{prediction['class']}"
    to_go = f"{number(prediction['expected_seconds'])} s expected to go" if prediction["expected_seconds"] else ""
    reaches = f"reaches {number(prediction['target'])} with p {number(prediction['p'])}"
    return ", ".join(filter(None, (f"{prediction['class']} at step {prediction['step']}: {reaches}", to_go)))


WORDS = {
    "rung": "to train to rung {}",
    "bracket": "in bracket {}",
    "member": "as member {} of the population",
    "population": "in population {}",
    "rank": "where rank {} was replaced",
    "of": "of {}",
    "exploits": "as a copy of trial {}, with changes from there on",
    "replaces": "instead of trial {}",
    "branch_of": "branched off trial {}",
    "cooldown_of": "as a cooldown of trial {}",
    "merge_of": "as the value of trial {}",
    "at": "at step {}",
    "suggestion": "from suggestion {}",
    "suggested_by": "by {}",
    "first": "from `first` of the study, number {}",
    "slots": "with {} slots at work",
    "elapsed": "after {} s",
}
"""The text of each part of a reason, in reading order."""

HIDDEN_PARTS = ("by", "sample", "explored", "average_of")

BY = {"tuner": "by the tuner", "user": "by a user"}


def start_text(reason: Mapping[str, Any]) -> str:
    """Who started a trial, and why; empty if unrecorded. A part without a text appears by its name."""
    parts = [BY.get(str(reason["by"]), f"by {reason['by']}")] if "by" in reason else []
    if states := reason.get("average_of"):
        parts.append("from the mean of " + ", ".join(_state(each) for each in states))
    parts += [text.format(_short(reason[name])) for name, text in WORDS.items() if name in reason]
    known = {*WORDS, *HIDDEN_PARTS}
    parts += [f"{name} {_short(value)}" for name, value in reason.items() if name not in known]
    return ", ".join(parts).replace(", of ", " of ").replace(", at step ", " at step ").replace(", by ", " by ")


def _state(part: Mapping[str, Any]) -> str:
    at = f" at step {part['step']}" if "step" in part else ""
    return f"trial {part['trial']}{at}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
