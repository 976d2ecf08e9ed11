"""Hyper-parameters that exist only if others have certain values.

    momentum:
      value: {uniform: [0.8, 0.99]}
      when: {optimizer: [sgd, nesterov]}

>>> when({"optimizer": "sgd"}, 0.9)
{'value': 0.9, 'when': {'optimizer': 'sgd'}}

A configuration holds a hyper-parameter with a `when` only if each name in it is there and has one of its values. So
what a sampler draws, a grid crosses and a trainer is given never holds what has no meaning.

What a hyper-parameter's entry in a space can become: looked at before a study starts, and listed for a grid.

`max_steps` says for how many steps trials are trained: all alike, each as its configuration says, or to its end.

    max_steps: [1000, 2000, 4000]     a value of the space like others
    max_steps: {end: lr}              until lr stays as it is, such as at the end of its decay
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from random import Random
from typing import Any

from stagetree.sequences import (
    Constant,
    Sequence,
    SequenceError,
    check_count,
    did_you_mean,
    end_of,
    is_equal_value,
    needs_length,
    parse,
    parse_for,
)
from stagetree.space.distributions import Range, SpaceError, plain
from stagetree.space.patterns import count, drawing, fill, is_random, random_parts, read_pattern, unfold_entry

__all__ = ["Condition", "split", "when"]


def when(condition: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The entry of a hyper-parameter that exists only if others have these values: one each, or one of a list."""
    return {"value": value, "when": dict(condition)}


@dataclass(frozen=True, slots=True)
class Condition:
    """By name, the sequences of which that hyper-parameter must have one.

    listed: the names whose wanted values are written as in the space. Of others, 1 is also what a range gives as 1.0.
    """

    wanted: Mapping[str, tuple[Sequence, ...]]
    listed: frozenset[str] = frozenset()

    def holds(self, configuration: Mapping[str, Sequence]) -> bool:
        """Whether it is so in a configuration, as far as it is chosen."""
        return all(name in configuration and self._has(name, configuration[name]) for name in self.wanted)

    def _has(self, name: str, value: Sequence) -> bool:
        if name in self.listed:
            return value in self.wanted[name]
        return any(_is_equal(value, each) for each in self.wanted[name])

    def resolved(self, values: Mapping[str, list[Sequence] | None], owner: str) -> Condition:
        """The condition in terms of the values that hyper-parameters can have, where these are known.

        1 means 1, where that is in the space, and else 1.0. Raises `SpaceError` for other values.
        """
        known = {name: options for name in self.wanted if (options := values[name]) is not None}
        wanted = {name: _as_listed(self.wanted[name], known[name], f"{owner}.when.{name}") for name in known}
        return Condition({**self.wanted, **wanted}, frozenset(known))


def split(entry: Any, path: str) -> tuple[Any, Condition | None]:
    """The entry itself, and what it depends on. Raises `SpaceError`."""
    if not isinstance(entry, Mapping) or "when" not in entry or "family" in entry:
        return entry, None
    if entry.keys() != {"value", "when"}:
        raise SpaceError(path, f"must have value and when, and no others, got {', '.join(map(str, entry))}")
    when = entry["when"]
    if not isinstance(when, Mapping) or not when:
        raise SpaceError(f"{path}.when", f"must map other hyper-parameters to their values, got {when!r}")
    return entry["value"], Condition({name: _values(value, f"{path}.when.{name}") for name, value in when.items()})


def _values(written: Any, path: str) -> tuple[Sequence, ...]:
    written = plain(written)
    listed = written if isinstance(written, list) else [written]
    try:
        return tuple(parse(value, path) for value in listed)
    except SequenceError as error:
        raise SpaceError(error.field, error.problem) from None


def in_order(conditions: Mapping[str, Condition | None]) -> list[str]:
    """The names as written, but those that depend on others after all they depend on. Raises `SpaceError`."""
    if not any(conditions.values()):
        return list(conditions)
    for name, condition in conditions.items():
        for other in condition.wanted if condition else ():
            if other not in conditions or other == name:
                others = [each for each in conditions if each != name]
                problem = f"must be one of {', '.join(others) or 'no others'}{did_you_mean(other, others)}"
                raise SpaceError(f"{name}.when.{other}", problem)
    before = {name: list(condition.wanted) if condition else [] for name, condition in conditions.items()}
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        cycle = sorted(set(error.args[1]))
        raise SpaceError(f"{cycle[0]}.when", f"must not depend on itself, through {', '.join(cycle)}") from None


_LISTED = 1_000_000
"""The most ways to choose inside one entry that a grid makes a list of."""

CHECKED = 10_000
"""How many of the ways to choose inside one entry are looked at before a study starts."""


def read_entry(entry: Any, path: str = "", lengths: Iterable[int | None] = (None,)) -> Any:
    """The pattern of one hyper-parameter, after a look at every sequence it can become in trials of these lengths."""
    pattern = read_pattern(split(entry, path)[0], path)
    for steps in lengths:
        for place, unfolded in islice(unfold_entry(pattern, path), CHECKED):
            _check_when(unfolded, place, steps)
    return pattern


def _check_when(unfolded: Any, path: str, steps: int | None) -> None:
    """Raise if no draw from a pattern without choices is a sequence. Some that are not do no harm: they are redrawn."""
    rng = Random(path)
    for attempts_left in reversed(range(100 if is_random(unfolded) else 1)):
        try:
            parse_for(fill(unfolded, path, drawing(rng)), steps, path)
        except SequenceError:
            if not attempts_left:
                raise
        else:
            return


def grid_options(name: str, pattern: Any, steps: int | None) -> list[Sequence]:
    """Every sequence that a pattern without ranges can become in a trial of so many steps. Raises `SpaceError`."""
    if (ways := count(pattern)) > _LISTED:
        raise SpaceError(name, f"must have at most {_LISTED:,} ways to be chosen in a grid, got {ways:.1e}")
    return list(_grid_entry(name, pattern, steps))


def _grid_entry(name: str, pattern: Any, steps: int | None) -> Iterator[Sequence]:
    for path, unfolded in unfold_entry(pattern, name):
        for kind in random_parts(unfolded):
            raise SpaceError(path, f"must be listed for a grid: {kind} has no list of values, use choice or a list")
        yield parse_for(unfolded, steps, path)


def listed_values(name: str, pattern: Any) -> list[Sequence] | None:
    """The values that a hyper-parameter can have; None where they are too many, or not known yet."""
    options = [unfolded for _, unfolded in islice(unfold_entry(pattern, name), CHECKED)]
    if len(options) == CHECKED or any(is_random(each) or needs_length(each) for each in options):
        return None
    return [parse(each, name) for each in options]


def _as_listed(wanted: tuple[Sequence, ...], values: list[Sequence], path: str) -> tuple[Sequence, ...]:
    listed: list[Sequence] = []
    for each in wanted:
        same = [each] if each in values else [value for value in values if _is_equal(value, each)]
        if not same:
            got, texts = _text(each), list(map(_text, values))
            raise SpaceError(path, f"must be one of {', '.join(texts)}, got {got}{did_you_mean(got, texts)}")
        listed += same
    return tuple(listed)


def _is_equal(one: Sequence, other: Sequence) -> bool:
    return is_equal_value(one.to_json(), other.to_json())


def _text(sequence: Sequence) -> str:
    return str(sequence.value) if isinstance(sequence, Constant) else str(sequence)


LENGTH = "max_steps"
"""What a space calls the length of a trial, where that is a value of it; no hyper-parameter of the trainer then."""

Configuration = Mapping[str, Sequence]


@dataclass(frozen=True, slots=True)
class Lengths:
    """steps: of all trials; None where that is not known, or not the same. is_chosen: whether each has its own.

    end: the hyper-parameter whose end is the end of the trial.
    """

    steps: int | None = None
    is_chosen: bool = False
    end: str | None = None

    def of(self, configuration: Configuration) -> int | None:
        """The steps of a trial, as far as they are chosen."""
        if not self.is_chosen:
            return self.steps
        chosen = configuration.get(LENGTH)
        return chosen.value if isinstance(chosen, Constant) else None  # type: ignore[return-value]

    def parse(self, written: Any, path: str, configuration: Configuration) -> Sequence:
        """The sequence of a hyper-parameter in a trial. Raises `SequenceError`."""
        sequence: Sequence = parse_for(written, self.of(configuration), path)
        return sequence

    def completed(self, configuration: dict[str, Sequence]) -> dict[str, Sequence]:
        """The configuration with the length that follows from it. Raises `SpaceError`."""
        if self.end is None:
            return configuration
        if self.end not in configuration:
            raise SpaceError(f"{LENGTH}.end", f"must name a hyper-parameter of every trial: some have no {self.end}")
        if not (steps := end_of(sequence := configuration[self.end])):
            why = "changes without an end" if steps is None else "stays at its first value"
            raise SpaceError(
                f"{LENGTH}.end",
                f"must name a hyper-parameter that comes to an end in every trial: {self.end} never does where it is "
                f"{json.dumps(sequence.to_json())}, which {why}; leave that out, or give {LENGTH} in numbers",
            )
        return {**configuration, LENGTH: Constant(steps)}

    def looked_at(self, entry: Any) -> Iterator[int | None]:
        """The lengths for which the entries of a space are checked: all that are listed, or the ends of a range."""
        if self.end or not self.is_chosen:
            yield self.steps
            return
        for _, written in unfold_entry(read_pattern(entry, LENGTH), LENGTH):
            yield from (written.low, written.high) if isinstance(written, Range) else (written,)


def read_lengths(entry: Any, names: Iterable[str]) -> Lengths:
    """What the entry of the length says. Raises `SpaceError`."""
    if split(entry, LENGTH)[1] is not None:
        raise SpaceError(LENGTH, "must be the same whatever other values are chosen: leave out when")
    if isinstance(entry, Mapping) and entry.keys() == {"end"}:
        names = [name for name in names if name != LENGTH]
        if entry["end"] not in names:
            raise SpaceError(f"{LENGTH}.end", f"must be one of {', '.join(names)}, got {entry['end']!r}")
        return Lengths(is_chosen=True, end=entry["end"])
    for path, written in unfold_entry(read_pattern(entry, LENGTH), LENGTH):
        _check(written, path)
    return Lengths(is_chosen=True)


def _check(written: Any, path: str) -> None:
    if isinstance(written, Range) and written.is_whole:
        written = written.low
    if is_random(written) or isinstance(written, Mapping):
        example = "[1000, 2000], {randint: [500, 4000]} or {end: lr}"
        raise SpaceError(path, f"must be numbers of steps, such as {example}, got {written!r}")
    try:
        check_count(path, written)
    except SequenceError as error:
        raise SpaceError(error.field, error.problem) from None
