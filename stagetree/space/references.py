"""References: numbers of steps that follow from the schedule of another hyper-parameter.

    lr: {family: wsd, peak: 0.01, warmup: 100, decay: {choice: [{ratio: 0.1}, {ratio: 0.2}]}}
    data: {family: values, values: [web, code], at: lr.decay_start}

`{of: lr.decay_start}` is the step at which the decay of `lr` starts, in each trial its own, and `{ratio: 0.5, of:
lr.decay}` is half of a field that counts steps. Trials are named and recorded with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from graphlib import CycleError, TopologicalSorter
from itertools import islice, product
from random import Random
from typing import Any

from stagetree.sequences import Sequence, SequenceError, did_you_mean, is_fraction, is_mix, parse_for_length
from stagetree.space.distributions import Choice, SpaceError
from stagetree.space.effort import spend
from stagetree.space.patterns import fill, is_random, random_choices, unfold_entry, weight

CHECKED = 1_000
"""How many ways to choose in an entry and in those that it refers to are checked before a study starts."""

_ATTEMPTS = 100
"""How often a way to choose is drawn before it counts as invalid."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """A value of a hyper-parameter with references, which is a sequence once the others are chosen."""

    written: Any
    path: str


# -------------------------------------------------------------------------------------------------------- as written


def is_reference(value: Any) -> bool:
    """Whether a fraction refers to another hyper-parameter: its `of` is a name and a field, such as lr.decay_start."""
    return is_fraction(value) and "." in str(value.get("of", ""))


def find_references(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The references inside an entry, each with its place."""
    if is_reference(value):
        yield f"{path}.of", str(value["of"])
    match value:
        case Choice(options=items) | [*items]:
            for number, item in enumerate(items):
                yield from find_references(item, f"{path}[{number}]")
        case dict() if not is_mix(value):
            for name, item in value.items():
                yield from find_references(item, f"{path}.{name}")


def target(reference: str) -> str:
    """The hyper-parameter that a reference names; its name may have dots."""
    return reference.rpartition(".")[0]


def read_references(entries: Mapping[str, Any], excluded: Iterable[str] = ()) -> dict[str, set[str]]:
    """By hyper-parameter with references, the names that it refers to. Raises `SpaceError`."""
    others, found = [name for name in entries if name not in excluded], dict[str, set[str]]()
    for name, entry in entries.items():
        for place, reference in find_references(entry, name):
            known = [each for each in others if each != name]
            if (wanted := target(reference)) not in known:
                names = ", ".join(known) or "no others"
                problem = f"must be a step of {names}, such as NAME.decay_start, got {reference!r}"
                raise SpaceError(place, problem + did_you_mean(wanted, known))
            found.setdefault(name, set()).add(wanted)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        cycle = sorted(set(error.args[1]))
        raise SpaceError(cycle[0], f"must not follow from itself, through {', '.join(cycle)}") from None
    return found


# ----------------------------------------------------------------------------------------------------------- in trials


def bind(configuration: Mapping[str, Sequence | Unbound], steps: int | None) -> dict[str, Sequence]:
    """The configuration with all references replaced, in a trial of `steps` steps. Raises `SequenceError`."""
    bound = {name: each for name, each in configuration.items() if isinstance(each, Sequence)}

    def sequence_of(name: str) -> Sequence | None:
        if name not in bound and isinstance(each := configuration.get(name), Unbound):
            bound[name] = parse_for_length(bind_pattern(each.written, each.path, sequence_of), steps, each.path)
        return bound.get(name)

    for name in configuration:
        sequence_of(name)
    return {name: bound[name] for name in configuration}


def bind_pattern(pattern: Any, path: str, sequence_of: Callable[[str], Sequence | None]) -> Any:
    """The pattern with references replaced by steps. Raises `SequenceError`."""
    if is_reference(pattern):
        steps = _steps(str(pattern["of"]), f"{path}.of", sequence_of)
        return {"ratio": pattern["ratio"], "of": steps} if "ratio" in pattern else steps
    match pattern:
        case Choice(options=options, path=own, weights=weights):
            bound = (bind_pattern(option, f"{path}[{n}]", sequence_of) for n, option in enumerate(options))
            return Choice(tuple(bound), own, weights)
        case dict() if not is_mix(pattern):
            return {name: bind_pattern(item, f"{path}.{name}", sequence_of) for name, item in pattern.items()}
        case list():
            return [bind_pattern(item, f"{path}[{number}]", sequence_of) for number, item in enumerate(pattern)]
    return pattern


def _steps(reference: str, path: str, sequence_of: Callable[[str], Sequence | None]) -> int:
    name, _, field = reference.rpartition(".")
    sequence = sequence_of(name)
    if sequence is None:
        raise SequenceError(path, f"must be a step of a hyper-parameter that each such trial has: some have no {name}")
    named = named_steps(sequence)
    if field not in named:
        places = [f"{name}.{each}" for each in named]
        known = ", ".join(places) or f"none: it is {sequence.family}"
        raise SequenceError(
            path,
            f"must be a step of {name}, which here has {known}, got {reference!r}{did_you_mean(reference, places)}",
        )
    return named[field]


def named_steps(sequence: Sequence) -> dict[str, int]:
    """The steps of a sequence by name: its fields that count steps, and the two ends of its decay."""
    counts = {field.name for field in fields(sequence) if str(field.type).startswith("int")}  # type: ignore[arg-type]
    named = {name: value for name in sorted(counts) if isinstance(value := getattr(sequence, name), int)}
    decay = sequence.decay_span()
    return named if decay is None else {**named, "decay_start": decay[0], "decay_end": decay[1]}


# --------------------------------------------------------------------------------------------------- before the study


def check_references(
    name: str, references: Mapping[str, set[str]], patterns: Mapping[str, Any], steps: int | None
) -> None:
    """Raise `SequenceError` if some way to choose in an entry and in those it follows from is no valid sequence.

    Of ways with ranges, one valid draw is enough. steps: the length of trials, if it is known.
    """
    involved = _closure(name, references)
    ways = (islice(unfold_entry(patterns[each], each), CHECKED) for each in involved)
    for chosen in islice(product(*map(list, ways)), CHECKED):
        spend(sum(weight(pattern) for _, pattern in chosen))
        _check_way(dict(zip(involved, chosen, strict=True)), steps)


def _check_way(chosen: Mapping[str, tuple[str, Any]], steps: int | None) -> None:
    rng, is_drawn = Random(str(list(chosen))), any(is_random(pattern) for _, pattern in chosen.values())
    for attempts_left in reversed(range(_ATTEMPTS if is_drawn else 1)):
        filled = {
            name: Unbound(fill(pattern, place, random_choices(rng)), place) for name, (place, pattern) in chosen.items()
        }
        try:
            bind(filled, steps)
        except SequenceError:
            if not attempts_left:
                raise
        else:
            return


def _closure(name: str, references: Mapping[str, set[str]]) -> list[str]:
    """The hyper-parameter, and all that it follows from."""
    found = {name: None}
    for each in (waiting := [name]):
        new = sorted(references.get(each, set()) - found.keys())
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)
