"""The lengths of trials, if the space sets them.

`max_steps` sets how long trials are trained, for all of them or for each:

    max_steps: [1000, 2000, 4000]     a value of the space like others
    max_steps: {end: lr}              until lr stays as it is, such as at the end of its decay
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagetree.sequences import Constant, Sequence, SequenceError, check_count, last_change
from stagetree.space.conditions import split
from stagetree.space.distributions import Range, SpaceError
from stagetree.space.patterns import is_random, read_pattern, unfold_entry

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

    def sets(self, name: str) -> bool:
        """Whether the entry of this name is the length itself."""
        return self.is_chosen and name == LENGTH

    def length_of(self, configuration: Configuration) -> int | None:
        """The length of a trial, as far as its values are chosen."""
        if not self.is_chosen:
            return self.steps
        chosen = configuration.get(LENGTH)
        return chosen.value if isinstance(chosen, Constant) else None  # type: ignore[return-value]

    def add_length(self, configuration: dict[str, Sequence]) -> dict[str, Sequence]:
        """Add the length that follows from the configuration. Raises `SpaceError`."""
        if self.end is None:
            return configuration
        if self.end not in configuration:
            raise SpaceError(f"{LENGTH}.end", f"must name a hyper-parameter of every trial: some have no {self.end}")
        if not (steps := last_change(sequence := configuration[self.end])):
            why = "changes without an end" if steps is None else "stays at its first value"
            raise SpaceError(
                f"{LENGTH}.end",
                f"must name a hyper-parameter that comes to an end in every trial: {self.end} never does where it is "
                f"{json.dumps(sequence.to_json())}, which {why}; leave that out, or give {LENGTH} in numbers",
            )
        return {**configuration, LENGTH: Constant(steps)}

    def checked_lengths(self, entry: Any) -> Iterator[int | None]:
        """The lengths for which entries are checked: all values of a list, or both ends of a range."""
        if self.end or not self.is_chosen:
            yield self.steps
            return
        for _, written in unfold_entry(read_pattern(entry, LENGTH), LENGTH):
            yield from (written.low, written.high) if isinstance(written, Range) else (written,)


def read_lengths(entry: Any, names: Iterable[str]) -> Lengths:
    """Parse the entry `max_steps`. Raises `SpaceError`."""
    if split(entry, LENGTH)[1] is not None:
        raise SpaceError(LENGTH, "must not depend on other values: leave out when")
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
