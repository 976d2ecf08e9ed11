"""Texts about studies for terminals and notebooks, and the statistics of repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

Metrics = Mapping[str, float | None]

FINAL = ("completed", "failed", "cancelled")
"""The states of a study that is over."""

RANKED_LAST = "failed"
"""Trials in this state rank behind all others with a result, however good their own."""


def value_text(result: Mapping[str, Any]) -> str:
    """A metric in six digits; for a mean, with deviation and count: 0.981234 ± 0.0012 (3).

    Where repeats share a trunk, with its end: 0.981234 ± 0.0012 (3 from step 8000).
    """
    value, deviation, begin = f"{result['value']:.6g}", result.get("deviation"), result.get("repeats_from")
    repeats = f"{result.get('repeats')}{f' from step {begin}' if begin else ''}"
    return value if deviation is None else f"{value} ± {deviation:.2g} ({repeats})"


def float_text(value: float, digits: int) -> str:
    """A float with `digits` digits that does not look like an int: 1.0, 0.25, 1e-05."""
    text = f"{value:.{digits}g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text


def is_number(value: object) -> bool:
    """Whether a value is a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def duration(seconds: float) -> str:
    """A duration as 3:05 or 2:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def unread_text(names: Sequence[str]) -> str:
    """A warning that hyper-parameters have no effect, since the trainer's first steps did not read them."""
    listed = " and ".join(f"`{name}`" for name in names)
    change, them = ("changes", "it") if len(names) == 1 else ("change", "them")
    return f"{listed} {change} nothing: `setup` never reads {them}, nor do the first steps"


def rough_duration(seconds: float) -> str:
    """An approximate duration in one unit: 40 s, 12 min, 5 h, 3 days."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 172_800)):
        if round(seconds) < most:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds / 86_400)} days"


def decision_text(kind: str, trial: int, steps: int) -> str:
    """A tuner's decision about a trial, in words."""
    return f"trial {trial} " + (f"continues to step {steps}" if kind == "promote" else "is pruned")


def rank_text(reason: Mapping[str, Any]) -> str:
    """The rank behind a decision: rank 5 of 9, drawn among 4 equal results, the best 3 are promoted. Empty without a
    rank.
    """
    if not {"rank", "of"} <= reason.keys():
        return ""
    cut = reason.get("cut")
    who = "" if cut is None else ", the best one is promoted" if cut == 1 else f", the best {cut} are promoted"
    return f"rank {reason['rank']} of {reason['of']}{drawn_text(reason.get('drawn_among', 0))}{who}"


def drawn_text(equal: int) -> str:
    """The suffix of a rank among results that are equal, if there are several."""
    return f", drawn among {equal} equal results" if equal > 1 else ""


def percent(share: float) -> str:
    """A share as percentage: 98%. 100% and 0% appear only if exact."""
    return f"{share:.0%}" if share in (0, 1) else f"{min(max(round(share * 100), 1), 99)}%"


def saved_text(by_sharing: float | None, by_stopping: float | None) -> str:
    """What a study saved: 54% by sharing, 98% by early stopping. Their baselines differ, so they are not added."""
    shares = ((by_sharing, "sharing"), (by_stopping, "early stopping"))
    return ", ".join(f"{percent(share)} by {how}" for share, how in shares if share) or "nothing so far"


# --------------------------------------------------------------------------------------------------- hyper-parameters


def short_hp(hp: Mapping[str, Any]) -> str:
    """Hyper-parameters on one line."""
    return "  ".join(f"{name}={short_sequence(sequence)}" for name, sequence in hp.items())


def short_sequence(sequence: Any) -> str:
    """A sequence as a Python call, without default values."""
    if not isinstance(sequence, dict) or "family" not in sequence:
        return short(sequence)
    family = sequence["family"]
    fields = {name: value for name, value in sequence.items() if name != "family"}
    if family == "constant":
        return short(fields["value"])
    defaults: Mapping[str, Any] = DEFAULTS.get(family, {})
    inner = ", ".join(_argument(name, value) for name, value in fields.items() if defaults.get(name, fields) != value)
    return f"{family}({inner})"


_CURVE = {"decay": 0, "decay_start": None, "min": 0, "final": 0, "shape": "linear"}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "warmup": {"start": 0},
    "wsd": {"final": 0, "shape": "linear"},
    "inverse_sqrt": _CURVE,
    "power": _CURVE,
}
"""The default values of fields, by family."""


def _argument(name: str, value: Any) -> str:
    if isinstance(value, dict) and "family" in value:
        return short_sequence(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ", ".join(_part(part) for part in value) + "]"
    return f"{name}={short(value)}"


def _part(part: Mapping[str, Any]) -> str:
    steps = f"{part['steps']}: " if "steps" in part else ""
    return steps + short_sequence(part["sequence"])


def short(value: Any) -> str:
    """A value with floats in four digits, still recognisable as floats."""
    if isinstance(value, list):
        return "[" + ", ".join(map(short, value)) + "]"
    return float_text(value, 4) if isinstance(value, float) else str(value)


# -------------------------------------------------------------------------------------------------------------- marks

UNCHECKED, WRONG, OTHER = "unchecked", "may be wrong", "may differ"
"""The words of a mark in a table."""


def mark_word(mark: str) -> str:
    """A mark for a table: unchecked, may be wrong, or may differ. Empty if there is none."""
    word = mark.partition(":")[0]
    return next((each for each in (UNCHECKED, WRONG) if word.endswith(each)), OTHER if mark else "")


def mark_sentence(subject: str, mark: str) -> str:
    """A mark as a sentence: Its value is unchecked: it resumed from ..."""
    word = mark_word(mark)
    is_or = {UNCHECKED: " is", WRONG: ""}.get(word, f" {OTHER}:")
    return f"{subject}{is_or} {mark}"


# ------------------------------------------------------------------------------------------------------------ repeats


def means(measured: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all repeats have; None if one of its values is not a number.

    It is the exact mean, rounded once, so it lies between the least and the greatest value.
    """
    if len(measured) == 1:
        return measured[0]
    return {name: float(mean(numbers)) if numbers else None for name, numbers in _numbers(measured)}


def deviations(measured: Sequence[Metrics]) -> Mapping[str, float]:
    """The sample standard deviation of each metric that has a mean of several values."""
    return {name: stdev(numbers) for name, numbers in _numbers(measured) if len(numbers) > 1}


def _numbers(measured: Sequence[Metrics]) -> Iterator[tuple[str, list[float]]]:
    """The values of each metric that all repeats have; empty if one is not a number."""
    for name in measured[0]:
        if all(name in each for each in measured):
            numbers = [value for each in measured if (value := each[name]) is not None]
            yield name, numbers if len(numbers) == len(measured) else []
