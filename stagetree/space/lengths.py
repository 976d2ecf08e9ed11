"""For how many steps the trials of a space are trained: all alike, each as its configuration says, or to its end.

max_steps: [1000, 2000, 4000]     a value of the space like others
max_steps: {end: lr}              until lr stays as it is, such as at the end of its decay
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagetree.sequences import Constant, Sequence, SequenceError, check_count, end_of, parse_for
from stagetree.space.conditions import split
from stagetree.space.distributions import RandInt, SpaceError
from stagetree.space.patterns import is_random, read_pattern, unfold_entry

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
        found: Sequence = parse_for(written, self.of(configuration), path)
        return found

    def completed(self, configuration: dict[str, Sequence]) -> dict[str, Sequence]:
        """The configuration with the length that follows from it. Raises `SpaceError`."""
        if self.end is None or self.end not in configuration:
            return configuration
        if not (steps := end_of(configuration[self.end])):
            raise SpaceError(
                f"{LENGTH}.end", f"must name a hyper-parameter that comes to an end: {self.end} never does"
            )
        return {**configuration, LENGTH: Constant(steps)}

    def looked_at(self, entry: Any) -> Iterator[int | None]:
        """The lengths for which the entries of a space are checked: all that are listed, or the ends of a range."""
        if self.end or not self.is_chosen:
            yield self.steps
            return
        for _, written in unfold_entry(read_pattern(entry, LENGTH), LENGTH):
            yield from (written.low, written.high) if isinstance(written, RandInt) else (written,)


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
    if isinstance(written, RandInt):
        written = written.low
    if is_random(written) or isinstance(written, Mapping):
        example = "[1000, 2000], {randint: [500, 4000]} or {end: lr}"
        raise SpaceError(path, f"must be numbers of steps, such as {example}, got {written!r}")
    try:
        check_count(path, written)
    except SequenceError as error:
        raise SpaceError(error.field, error.problem) from None
