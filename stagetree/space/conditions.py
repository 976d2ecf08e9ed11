"""Conditional hyper-parameters, and the lengths of trials.

    momentum:
      value: {uniform: [0.8, 0.99]}
      when: {optimizer: [sgd, nesterov]}

>>> when({"optimizer": "sgd"}, 0.9)
{'value': 0.9, 'when': {'optimizer': 'sgd'}}

A configuration has a hyper-parameter with a `when` only if each name in the `when` exists and has one of the listed
values. Samplers, grids and trainers therefore never see a value without effect.

`max_steps` sets how long trials are trained, for all of them or for each:

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
    """An entry for a conditional hyper-parameter: it exists only if others have one of the given values."""
    return {"value": value, "when": dict(condition)}


@dataclass(frozen=True, slots=True)
class Condition:
    """The values that other hyper-parameters must have."""

    wanted: Mapping[str, tuple[Sequence, ...]]
    """By name, the sequences of which the hyper-parameter must have one."""
    listed: frozenset[str] = frozenset()
    """Names whose wanted values are written as in the space. For the others, 1 also matches 1.0 from a range."""

    def holds(self, configuration: Mapping[str, Sequence]) -> bool:
        """Whether the condition is satisfied, as far as the configuration is chosen."""
        return all(name in configuration and self._has(name, configuration[name]) for name in self.wanted)

    def _has(self, name: str, value: Sequence) -> bool:
        if name in self.listed:
            return value in self.wanted[name]
        return any(_is_equal(value, each) for each in self.wanted[name])

    def resolved(self, values: Mapping[str, list[Sequence] | None], owner: str) -> Condition:
        """The condition with the values as the space writes them, where these are known.

        1 means 1 if the space has it, otherwise 1.0. Raises `SpaceError` for values that are not in the space.
        """
        known = {name: options for name in self.wanted if (options := values[name]) is not None}
        wanted = {name: _as_listed(self.wanted[name], known[name], f"{owner}.when.{name}") for name in known}
        return Condition({**self.wanted, **wanted}, frozenset(known))


def split(entry: Any, path: str) -> tuple[Any, Condition | None]:
    """Split a `when` off an entry. Raises `SpaceError`."""
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
    """The names as written, but each conditional one after the names it depends on. Raises `SpaceError`."""
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
"""The most ways to choose inside one entry of which a grid makes a list."""

CHECKED = 10_000
"""How many of the ways to choose inside one entry are checked before a study starts."""


def read_entry(entry: Any, path: str = "", lengths: Iterable[int | None] = (None,)) -> Any:
    """Parse one entry of a space, and check every sequence it can become in trials of these lengths."""
    pattern = read_pattern(split(entry, path)[0], path)
    for steps in lengths:
        for place, unfolded in islice(unfold_entry(pattern, path), CHECKED):
            _check_when(unfolded, place, steps)
    return pattern


def _check_when(unfolded: Any, path: str, steps: int | None) -> None:
    """Raise if no sample of a pattern without choices is a valid sequence. If some are, the others are sampled again.
    """
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
    """Every sequence of a pattern without ranges, in a trial of `steps` steps. Raises `SpaceError`."""
    if (ways := count(pattern)) > _LISTED:
        raise SpaceError(name, f"must have at most {_LISTED:,} ways to be chosen in a grid, got {ways:.1e}")
    return list(_grid_entry(name, pattern, steps))


def _grid_entry(name: str, pattern: Any, steps: int | None) -> Iterator[Sequence]:
    for path, unfolded in unfold_entry(pattern, name):
        for kind in random_parts(unfolded):
            raise SpaceError(path, f"must be listed for a grid: {kind} has no list of values, use choice or a list")
        yield parse_for(unfolded, steps, path)


def listed_values(name: str, pattern: Any) -> list[Sequence] | None:
    """The values that a hyper-parameter can have; None if they are too many or not known yet."""
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
"""The entry that sets the length of each trial. The trainer does not receive it."""

Configuration = Mapping[str, Sequence]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the trials of a space are."""

    steps: int | None = None
    """The length of all trials; None if it is unknown or differs."""
    is_chosen: bool = False
    """Whether each trial has its own length."""
    end: str | None = None
    """The hyper-parameter whose last change ends the trial."""

    def of(self, configuration: Configuration) -> int | None:
        """The length of a trial, as far as its values are chosen."""
        if not self.is_chosen:
            return self.steps
        chosen = configuration.get(LENGTH)
        return chosen.value if isinstance(chosen, Constant) else None  # type: ignore[return-value]

    def parse(self, written: Any, path: str, configuration: Configuration) -> Sequence:
        """Parse a hyper-parameter's sequence for a trial of this length. Raises `SequenceError`."""
        sequence: Sequence = parse_for(written, self.of(configuration), path)
        return sequence

    def completed(self, configuration: dict[str, Sequence]) -> dict[str, Sequence]:
        """Add the length that follows from the configuration. Raises `SpaceError`."""
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
        """The lengths for which entries are checked: all values of a list, or both ends of a range."""
        if self.end or not self.is_chosen:
            yield self.steps
            return
        for _, written in unfold_entry(read_pattern(entry, LENGTH), LENGTH):
            yield from (written.low, written.high) if isinstance(written, Range) else (written,)


def read_lengths(entry: Any, names: Iterable[str]) -> Lengths:
    """Parse the entry `max_steps`. Raises `SpaceError`."""
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
