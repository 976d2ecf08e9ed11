"""Other ways to write a study, whose trials share more.

Each rewrite asks nearly the same question. It names the change in a clause, and holds the whole study, so
that it can be priced and saved. Whether it saves anything, its caller counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from typing import Any

from stagetree.advice.sharing import TAIL
from stagetree.advice.tuning import RATES, sample_configurations
from stagetree.sequences import Sequence, SequenceError, needs_length
from stagetree.sequences.fractions import resolve_fractions
from stagetree.space import LENGTH
from stagetree.space.distributions import is_number
from stagetree.spec import SpecError, StudySpec

Json = dict[str, Any]

_PEAKS = ("peak", "init", "max", "then")
"""The fields of sequences that hold their highest value, or the sequence after a warm-up."""

_MAX_CONFIGURATIONS = 64


@dataclass(frozen=True)
class Rewrite:
    """A study that asks nearly the same as another one. change: the difference, in a clause."""

    name: str
    change: str
    spec: StudySpec


def rewrites(spec: StudySpec) -> Iterator[Rewrite]:
    """The rewrites that a study allows, at most one of each name: `horizon`, `order` and `peak`."""
    if spec.space is None or not spec.merge:
        return
    for name, rewrite in _REWRITES.items():
        space = dict(spec.to_json()["space"])
        try:
            change = rewrite(spec, space)
            if change:
                yield Rewrite(name, change, StudySpec.from_dict({**spec.to_json(), "space": space}))
        except (SequenceError, SpecError):
            continue  # a `where` or a condition names what the rewrite has replaced


# ------------------------------------------------------------------------------------------------------------ horizons


def _same_trunk(spec: StudySpec, space: Json) -> str:
    """Schedules over the whole length, as a decay at the end of a trunk that all lengths share."""
    listed = _lengths_of_end(space)
    lengths = listed or (spec.search_space.lengths if LENGTH in space else [])
    if len(lengths) < 2:
        return ""
    changed = [name for name in space if name != LENGTH and _replace_options(space, name, min(lengths), bool(listed))]
    if not changed:
        return ""
    space[LENGTH] = listed or space[LENGTH]
    tail = f"held, and a decay over the last {TAIL:.0%} of each length"
    return f"{_and(changed)} as wsd: {tail}, so that lengths share a trunk"


def _lengths_of_end(space: Json) -> list[int] | None:
    """The lengths of a space in which trials end with a schedule that has a choice of lengths; None for others."""
    end = space.get(LENGTH)
    name = end.get("end") if isinstance(end, Mapping) else None
    entry = _skip_warmup(space.get(str(name)))
    steps = entry.get("steps") if isinstance(entry, Mapping) else None
    return _numbers(steps) if isinstance(entry, Mapping) and entry.get("family") == "polynomial" else None


def _replace_options(space: Json, name: str, shortest: int, is_listed: bool) -> bool:
    """Replace the schedules of a hyper-parameter that are stretched over the length. Whether there was any."""
    options = space[name] if isinstance(space[name], list) else [space[name]]
    replaced = [_as_wsd(option, shortest, is_listed) or option for option in options]
    space[name] = replaced if isinstance(space[name], list) else replaced[0]
    return replaced != options


def _as_wsd(entry: Any, shortest: int, is_listed: bool) -> Json | None:
    """The schedule that holds its peak and then decays as this one does; None if it is not stretched over the length.

    is_listed: whether the length is the number of steps that the schedule lists.
    """
    inside = _skip_warmup(entry)
    if not isinstance(inside, Mapping) or not (needs_length(inside) or is_listed):
        return None
    warmup = resolve_fractions(entry.get("steps", 0) if inside is not entry else 0, shortest)
    match inside.get("family"):
        case "cosine" if needs_length(inside.get("period")):
            curve = {"peak": inside["init"], "final": inside.get("min", 0), "shape": "cosine"}
        case "polynomial" if needs_length(inside.get("steps")) or is_listed:
            curve = {"peak": inside["init"], "final": inside.get("final", 0), "shape": "linear"}
        case "one_cycle" if inside is entry:
            warmup = resolve_fractions(inside["up"], shortest)
            curve = {"peak": inside["max"], "final": inside.get("final", 0), "shape": inside.get("shape", "cosine")}
        case _:
            return None
    return {"family": "wsd", "warmup": warmup, "decay": {"ratio": TAIL}, **curve}


def _skip_warmup(entry: Any) -> Any:
    """The sequence after a warm-up from 0, or the entry itself."""
    is_warmup = isinstance(entry, Mapping) and entry.get("family") == "warmup" and not entry.get("start")
    return entry["then"] if is_warmup else entry


# --------------------------------------------------------------------------------------------------------------- order


def _later_choices(spec: StudySpec, space: Json) -> str:
    """Values that are compared from step 0 on, compared from the step on at which learning rates part."""
    rates = [name for name in RATES if name in space]
    listed = [name for name, entry in space.items() if name not in (*rates, LENGTH) and len(_numbers(entry) or ()) > 1]
    step = _parting_step(spec, rates[0]) if rates else None
    if not listed or not step:
        return ""
    for name in listed:
        values = _numbers(space[name]) or []
        space[name] = {"family": "values", "values": [values[0], {"choice": values}], "milestones": [step]}
    verb, its = ("takes", "its first value") if len(listed) == 1 else ("take", "their first values")
    until = f"up to step {step}, where {rates[0]} begins to differ"
    return f"{_and(listed)} {verb} {its} {until}, and the compared values after it"


def _parting_step(spec: StudySpec, name: str) -> int | None:
    """The first step at which two configurations that begin alike differ in a hyper-parameter; None if none do."""
    drawn = [each[name] for each in sample_configurations(spec)[:_MAX_CONFIGURATIONS] if name in each]
    distinct = list({repr(each.to_json()): each for each in drawn}.values())
    steps = [_first_difference(one, other) for one, other in combinations(distinct, 2)]
    return min((step for step in steps if step), default=None)


def _first_difference(one: Sequence, other: Sequence) -> int:
    """The first step at which two sequences are given by different pieces; 0 if they do not begin alike."""
    for before, after in zip(one.pieces(), other.pieces(), strict=False):
        if before != after:
            return min(before.start, after.start)
    return 0


# ---------------------------------------------------------------------------------------------------------------- peak


def _one_peak(spec: StudySpec, space: Json) -> str:
    """One peak of the learning rate instead of several."""
    for name in RATES:
        fixed = _fix_peak(space.get(name), name)
        if fixed is not None:
            space[name], where, value = fixed
            return f"{where} is {value:g} for all trials, so that peaks are not compared"
    return ""


def _fix_peak(entry: Any, place: str) -> tuple[Json, str, float] | None:
    """The entry with one peak, the peak's place and value; None if it has one already, or several sequences."""
    for field in _PEAKS if isinstance(entry, Mapping) else ():
        if field not in entry:
            continue
        where = place if field == "then" else f"{place}.{field}"
        if (value := _middle(entry[field])) is not None:
            return {**entry, field: value}, where, value
        if field == "then" and (inside := _fix_peak(entry[field], place)) is not None:
            return {**entry, field: inside[0]}, *inside[1:]
    return None


def _middle(distribution: Any) -> float | None:
    """The value in the middle of a choice of numbers or of a range; None for anything else."""
    if numbers := _numbers(distribution):
        return float(sorted(numbers)[len(numbers) // 2]) if len(numbers) > 1 else None
    for kind, middle in _MIDDLES.items() if isinstance(distribution, Mapping) else ():
        if kind in distribution:
            return float(f"{middle(*distribution[kind]):.3g}")
    return None


_MIDDLES: dict[str, Callable[[float, float], float]] = {
    "uniform": lambda least, most: (least + most) / 2,
    "loguniform": lambda least, most: exp((log(least) + log(most)) / 2),
}


def _numbers(entry: Any) -> list[Any] | None:
    """The numbers of a choice among numbers; None for any other entry."""
    options = entry.get("choice") if isinstance(entry, Mapping) else entry
    if not isinstance(options, list) or not all(map(is_number, options)):
        return None
    return list(dict.fromkeys(options))


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


_REWRITES: dict[str, Callable[[StudySpec, Json], str]] = {
    "horizon": _same_trunk,
    "order": _later_choices,
    "peak": _one_peak,
}
"""By name, each changes a space in place and returns the difference in words; empty if it does not apply."""
