"""Entries of a space: parsed and checked before a study starts, and listed for a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any

from stagetree.sequences import (
    FAMILIES,
    Sequence,
    SequenceError,
    is_fraction,
    is_mix,
    needs_length,
    parse,
    parse_for_length,
)
from stagetree.space.conditions import split
from stagetree.space.distributions import Choice, SpaceError
from stagetree.space.effort import spend
from stagetree.space.patterns import (
    count,
    fill,
    is_random,
    random_choices,
    random_parts,
    read_pattern,
    unfold_entry,
    weight,
)
from stagetree.space.references import Unbound, find_references

_LISTED = 1_000_000
"""The most ways to choose inside one entry of which a grid makes a list."""

CHECKED = 10_000
"""How many of the ways to choose inside one entry are checked before a study starts."""


def read_entry(entry: Any, path: str = "", lengths: Iterable[int | None] = (None,)) -> Any:
    """Parse one entry of a space, and check every sequence it can become in trials of these lengths."""
    pattern = read_pattern(split(entry, path)[0], path)
    for steps in lengths:
        for place, unfolded in islice(unfold_entry(pattern, path), CHECKED):
            spend(weight(unfolded))
            _check_when(unfolded, place, steps)
    return pattern


def _check_when(unfolded: Any, path: str, steps: int | None) -> None:
    """Raise if no sample of a pattern without choices is a valid sequence. Invalid samples are drawn again."""
    rng = Random(path)
    for attempts_left in reversed(range(100 if is_random(unfolded) else 1)):
        try:
            parse_for_length(fill(unfolded, path, random_choices(rng)), steps, path)
        except SequenceError:
            if not attempts_left:
                raise
        else:
            return


def grid_options(name: str, pattern: Any, steps: int | None) -> list[Any]:
    """Every value of a pattern without ranges, for trials of `steps` steps. Raises `SpaceError`."""
    if (ways := count(pattern)) > _LISTED:
        raise SpaceError(name, f"must have at most {_LISTED:,} ways to be chosen in a grid, got {ways:.1e}")
    return list(_grid_entry(name, pattern, steps))


def _grid_entry(name: str, pattern: Any, steps: int | None) -> Iterator[Any]:
    read = reader_of(pattern)
    for path, unfolded in unfold_entry(pattern, name):
        for kind in random_parts(unfolded):
            raise SpaceError(path, f"must be listed for a grid: {kind} has no list of values, use choice or a list")
        spend(weight(unfolded))
        yield read(unfolded, steps, path)


Read = Callable[[Any, int | None, str], Any]
"""Reads one way to choose in an entry, given the length of trials and its path. Raises `SequenceError`."""


def reader_of(pattern: Any) -> Read:
    """Reads a sequence; in an entry with references a value that is one once the others are chosen."""
    if any(find_references(pattern, "")):
        return lambda written, steps, path: Unbound(written, path)
    return parse_for_length if _follows_length(pattern) else lambda written, steps, path: parse(written, path)


def _follows_length(pattern: Any) -> bool:
    """Whether a pattern may hold fractions, or leave out a field that follows from the trial's length."""
    match pattern:
        case Choice(options=items) | [*items]:
            return any(map(_follows_length, items))
        case dict() if is_mix(pattern):
            return False
        case dict():
            family = FAMILIES.get(str(pattern.get("family")))
            is_left_out = family is not None and family.length_field(pattern) not in {None, *pattern}
            return is_fraction(pattern) or is_left_out or any(map(_follows_length, pattern.values()))
    return False


def listed_values(name: str, pattern: Any) -> list[Sequence] | None:
    """The values that a hyper-parameter can have; None if they are too many or not known yet."""
    options = [unfolded for _, unfolded in islice(unfold_entry(pattern, name), CHECKED)]
    if len(options) == CHECKED or any(is_random(each) or needs_length(each) for each in options):
        return None
    return [parse(each, name) for each in options]
