"""What a hyper-parameter's entry in a space can become: looked at before a study starts, and listed for a grid."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

from stagetree.sequences import Constant, Sequence, SequenceError, did_you_mean, parse
from stagetree.space.conditions import split
from stagetree.space.distributions import SpaceError
from stagetree.space.patterns import count, drawing, fill, is_random, random_parts, read_pattern, unfold_entry

_LISTED = 1_000_000
"""The most ways to choose inside one entry that a grid makes a list of."""

CHECKED = 10_000
"""How many of the ways to choose inside one entry are looked at before a study starts."""


def read_entry(entry: Any, path: str = "") -> Any:
    """The pattern of one hyper-parameter, after a look at every sequence it can become."""
    pattern = read_pattern(split(entry, path)[0], path)
    for place, unfolded in islice(unfold_entry(pattern, path), CHECKED):
        _check(unfolded, place)
    return pattern


def _check(unfolded: Any, path: str) -> None:
    """Raise if no draw from a pattern without choices is a sequence. Some that are not do no harm: they are redrawn."""
    rng = Random(path)
    for attempts_left in reversed(range(100 if is_random(unfolded) else 1)):
        try:
            parse(fill(unfolded, path, drawing(rng)), path)
        except SequenceError:
            if not attempts_left:
                raise
        else:
            return


def grid_options(name: str, pattern: Any) -> list[Sequence]:
    if (ways := count(pattern)) > _LISTED:
        raise SpaceError(name, f"must have at most {_LISTED:,} ways to be chosen in a grid, got {ways:.1e}")
    return list(_grid_entry(name, pattern))


def _grid_entry(name: str, pattern: Any) -> Iterator[Sequence]:
    for path, unfolded in unfold_entry(pattern, name):
        for kind in random_parts(unfolded):
            raise SpaceError(path, f"must be listed for a grid: {kind} has no list of values, use choice or a list")
        yield parse(unfolded, path)


def check_wanted(wanted: tuple[Sequence, ...], known: list[Sequence], path: str) -> None:
    for value in wanted:
        if value not in known:
            got, texts = _text(value), list(map(_text, known))
            raise SpaceError(path, f"must be one of {', '.join(texts)}, got {got}{did_you_mean(got, texts)}")


def _text(sequence: Sequence) -> str:
    return str(sequence.value) if isinstance(sequence, Constant) else str(sequence)
