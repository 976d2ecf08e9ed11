"""Failed trials: which errors are tried again, a failure in one line, and groups of equal failures.

Errors of the user's code are tried again in a fresh process, because machines have accidents. An error that has ended
one trial after all its tries is no accident. If another trial raises it at the same line and step, these tries count
there as well (docs/decisions/0010-failures.md).
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from app.domain import events as e
from app.domain.search_plan import ErrorLocation, Node, Study, Trial
from app.domain.terms import FailureKind, TrialState
from stagetree.text import is_number

ENVIRONMENT_ERRORS = frozenset(
    name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, OSError)
)
"""Errors of files and networks, by name. They do not depend on the trial, and always get all their tries."""

MOST_CONDITIONS = 2
"""Most hyper-parameters that a message names to distinguish a group of failed trials from others."""

MAX_CHANCE = 1 / 3
"""A condition is not reported if a random one would distinguish the groups with a higher probability."""


# ----------------------------------------------------------------------------------------------------------- the tries


def error_location(event: e.StageFailed) -> ErrorLocation:
    """The place and the signature of an error of the user's code."""
    step = event.step if event.evaluated is None else event.evaluated
    return step, event.signature or "", event.evaluated is not None


def counts_for_other_trials(event: e.StageFailed) -> bool:
    """Whether the tries of an error count for other trials that raise it.

    Out of memory, broken devices, crashes, hangs, and errors of files and networks may be accidents and do not count.
    """
    if event.kind != FailureKind.EXCEPTION or not event.signature:
        return False
    return event.signature.partition(" in ")[0] not in ENVIRONMENT_ERRORS


def count_tries(node: Node, event: e.StageFailed, stage: e.Stage) -> int:
    """The number of failed tries at this place, with any error."""
    if event.kind == FailureKind.POISON:
        return node.lost.get(stage.start, 0) + 1
    return max(1, node.count_failures(event.evaluated))


# --------------------------------------------------------------------------------------------------------- in one line


FRAME = '  File "'
"""The beginning of a traceback's line about a frame."""


def last_line(error: Mapping[str, Any] | None) -> str:
    """A failed trial's error in one line: of a traceback, the exception and the first line of its message."""
    lines = str((error or {}).get("error", "")).strip().splitlines() or [""]
    frames = [number for number, line in enumerate(lines) if line.startswith(FRAME)]
    raised = [line for line in lines[frames[-1] + 1 :] if line[:1].strip()] if frames else []
    return (raised or lines[-1:])[0].strip()


def failure_text(trial: Trial) -> str:
    """A failure in one line: "FloatingPointError: loss is nan, after step 3, tried 3 times"."""
    error = trial.error or {}
    return f"{_problem(error)}, after step {error.get('step')}{_tries_text(trial, error)}"


def _problem(error: Mapping[str, Any]) -> str:
    """The error without the step."""
    return last_line(error).removesuffix(f" after step {error.get('step')}") or str(error.get("kind", "failed"))


def _tries_text(trial: Trial, error: Mapping[str, Any]) -> str:
    tries = error.get("tries", 1)
    if equal := error.get("equal_to"):
        other = f"trial {equal[1]}" if equal[0] == trial.study else f"trial {equal[1]} of {equal[0]}"
        times = "once" if tries == 1 else f"{tries} times"
        return f", tried {times}, as the same error ended {other}"
    return f", tried {tries} times" if tries > 1 else ""


# -------------------------------------------------------------------------------------------------- equal ones together


@dataclass(frozen=True, slots=True)
class Group:
    """Failed trials of a study with equal errors."""

    trials: tuple[int, ...]
    kind: str
    place: str | None
    """The exception and the line that raised it, if known."""
    error: str
    """The last line of the error; if the lines differ, one of them."""
    steps: tuple[int, int]
    """The first and the last step after which they failed."""
    tries: int
    """The total of their tries."""
    where: str
    """A condition on hyper-parameters that holds for these trials and for no other that got further; "" for none."""


def groups(study: Study, reached: Mapping[int, int]) -> list[Group]:
    """The failed trials grouped by error, largest group first. reached: the last step of each trial."""
    by_sort: dict[tuple[str, str], list[Trial]] = {}
    for trial in (study.trials[number] for number in sorted(study.failed)):
        if trial.state == TrialState.FAILED:
            by_sort.setdefault(_sort(trial.error or {}), []).append(trial)
    return [_group(study, trials, reached) for trials in sorted(by_sort.values(), key=len, reverse=True)]


def _sort(error: Mapping[str, Any]) -> tuple[str, str]:
    """The key of equal errors. Messages may contain different numbers, but the line that raised them is the same."""
    kind = str(error.get("kind"))
    if kind != FailureKind.EXCEPTION:
        return kind, ""
    return kind, str(error.get("place") or last_line(error).partition(":")[0])


def _group(study: Study, trials: Sequence[Trial], reached: Mapping[int, int]) -> Group:
    errors = [trial.error or {} for trial in trials]
    steps = [int(error.get("step", 0)) for error in errors]
    numbers = {trial.number for trial in trials}
    others = [each for each in study.trials if each.number not in numbers and reached[each.number] > min(steps)]
    return Group(
        trials=tuple(trial.number for trial in trials),
        kind=str(errors[0].get("kind")),
        place=errors[0].get("place"),
        error=_common(list(dict.fromkeys(map(_problem, errors)))),
        steps=(min(steps), max(steps)),
        tries=sum(int(error.get("tries", 1)) for error in errors),
        where=_distinguishing_conditions(
            [_leaves(trial.hp) for trial in trials], [_leaves(trial.hp) for trial in others]
        ),
    )


def _common(lines: Sequence[str]) -> str:
    """One text for equal errors, whose messages may differ."""
    kind, _, message = lines[0].partition(": ")
    return lines[0] if len(lines) == 1 or not message else f'{kind}, such as "{message}"'


def group_text(group: Group) -> str:
    """A group in one line: "8 trials: FloatingPointError: loss is nan, after step 3, all with lr >= 0.85"."""
    first, last = group.steps
    after = f"after step {first}" if first == last else f"after steps {first} to {last}"
    where = f", all with {group.where}" if group.where else ""
    return f"{len(group.trials)} trial{'s' if len(group.trials) > 1 else ''}: {group.error}, {after}{where}"


Leaves = dict[str, Any]


def _leaves(hp: Mapping[str, Any], above: str = "") -> Leaves:
    """The numbers and words in the hyper-parameters, by path: `lr.init`."""
    leaves: Leaves = {}
    for name, value in hp.items():
        if isinstance(value, Mapping) and value.get("family") == "constant":
            leaves[f"{above}{name}"] = value.get("value")
        elif isinstance(value, Mapping):
            leaves |= _leaves(value, f"{above}{name}.")
        else:
            leaves[f"{above}{name}"] = value
    return leaves


def _distinguishing_conditions(failed: Sequence[Leaves], others: Sequence[Leaves]) -> str:
    """The conditions that hold for all failed trials and for no other, unless this is likely by chance."""
    names = dict.fromkeys(name for each in failed for name in each)
    names = dict.fromkeys(name for name in names if len({repr(each.get(name)) for each in (*failed, *others)}) > 1)
    if min(len(failed), len(others)) < 2 or 2 * len(names) / comb(len(failed) + len(others), len(failed)) > MAX_CHANCE:
        return ""
    sides = ((name, [each.get(name) for each in failed], [each.get(name) for each in others]) for name in names)
    differences = [text for name, mine, theirs in sides if (text := _difference(name, mine, theirs))]
    return " and ".join(differences[:MOST_CONDITIONS])


def _difference(name: str, mine: Sequence[Any], theirs: Sequence[Any]) -> str:
    if all(map(is_number, mine)) and all(map(is_number, theirs)):
        if min(mine) > max(theirs):
            return f"{name} >= {_short(min(mine))}"
        return f"{name} <= {_short(max(mine))}" if max(mine) < min(theirs) else ""
    kinds = list(dict.fromkeys(map(repr, mine)))
    if len(kinds) > 1 or mine[0] is None or kinds[0] in set(map(repr, theirs)):
        return ""
    return f"{name} = {_short(mine[0])}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
