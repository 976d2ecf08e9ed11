"""How a study is put into words, in a terminal and in a notebook, and what the metrics of repeats come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Metrics = Mapping[str, float | None]

FINAL = ("completed", "failed", "cancelled")
"""The states of a study that is over."""

RANKED_LAST = "failed"
"""The state of trials that come behind all others with a result, however good theirs is: they did not end well."""


def value_text(result: Mapping[str, Any]) -> str:
    """A metric in six digits; of a mean, the deviation and the number: 0.981234 ± 0.0012 (3)."""
    value, deviation = f"{result['value']:.6g}", result.get("deviation")
    return value if deviation is None else f"{value} ± {deviation:.2g} ({result['repeats']})"


def float_text(value: float, digits: int) -> str:
    """A float in so many digits that is not taken for an int: 1.0, 0.25, 1e-05."""
    text = f"{value:.{digits}g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text


def duration(seconds: float) -> str:
    """3:05 or 2:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def unread_text(names: Sequence[str]) -> str:
    """That hyper-parameters have no effect, since the trainer's first steps have read none of them."""
    listed = " and ".join(f"`{name}`" for name in names)
    change, them = ("changes", "it") if len(names) == 1 else ("change", "them")
    return f"{listed} {change} nothing: `setup` never reads {them}, nor do the first steps"


def rough(seconds: float) -> str:
    """A time in one unit, as one says it: 40 s, 12 min, 5 h, 3 days."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 172_800)):
        if round(seconds) < most:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} days"


def decided(kind: str, trial: int, steps: int) -> str:
    """What a tuner decided about a trial: trial 3 goes on to step 40."""
    return f"trial {trial} " + (f"continues to step {steps}" if kind == "promote" else "is stopped")


def rank_text(reason: Mapping[str, Any]) -> str:
    """Where a trial stood when that was decided: rank 5 of 9, the best 3 go on. Empty where it had no rank."""
    if not {"rank", "of"} <= reason.keys():
        return ""
    cut = reason.get("cut")
    who = "" if cut is None else ", the best one is promoted" if cut == 1 else f", the best {cut} are promoted"
    return f"rank {reason['rank']} of {reason['of']}{who}"


def percent(share: float) -> str:
    """A part of a whole: 98%. Only all of it is 100%, and only nothing of it is 0%."""
    return f"{share:.0%}" if share in (0, 1) else f"{min(max(round(share * 100), 1), 99)}%"


def saved_text(by_sharing: float | None, by_stopping: float | None) -> str:
    """What a study saved: 54% by sharing, 98% by early stopping. Each has its own baseline, so they are never added."""
    shares = ((by_sharing, "sharing"), (by_stopping, "early stopping"))
    return ", ".join(f"{percent(share)} by {how}" for share, how in shares if share) or "nothing so far"


# -------------------------------------------------------------------------------------------------------------- marks

UNCHECKED, WRONG, OTHER = "unchecked", "may be wrong", "may differ"
"""The words of a mark in a table."""


def mark_word(mark: str) -> str:
    """A mark in a word or three, for a table: unchecked, may be wrong, or may differ. Empty where there is none."""
    word = mark.partition(":")[0]
    return next((each for each in (UNCHECKED, WRONG) if word.endswith(each)), OTHER if mark else "")


def mark_sentence(subject: str, mark: str) -> str:
    """A mark as the end of a sentence: Its value is unchecked: it resumed from ..."""
    word = mark_word(mark)
    is_or = {UNCHECKED: " is", WRONG: ""}.get(word, f" {OTHER}:")
    return f"{subject}{is_or} {mark}"


# ------------------------------------------------------------------------------------------------------------ repeats


def means(measured: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all have; None where one of them is no number."""
    if len(measured) == 1:
        return measured[0]
    return {name: fmean(numbers) if numbers else None for name, numbers in _numbers(measured)}


def deviations(measured: Sequence[Metrics]) -> Mapping[str, float]:
    """The standard deviation, of a sample, of each metric that has a mean of several."""
    return {name: stdev(numbers) for name, numbers in _numbers(measured) if len(numbers) > 1}


def _numbers(measured: Sequence[Metrics]) -> Iterator[tuple[str, list[float]]]:
    """The numbers of each metric that all have; none where one of them is no number."""
    for name in measured[0]:
        if all(name in each for each in measured):
            numbers = [value for each in measured if (value := each[name]) is not None]
            yield name, numbers if len(numbers) == len(measured) else []
