"""How much may be asked for. What a request would make is counted before anything of it is made.

The limits are far above what studies need, and are there for the number that was typed wrong: without them one request
could keep every process of a service busy forever.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any

from stagetree.sequences import Piece, Sequence, SequenceError, with_ends
from stagetree.sequences.base import parse_text

LANES = 8
"""What `packing: true` says: few devices gain much by more, and a lane that nobody has is computed all the same."""

MOST_SHARDS = 1024
"""More parts of a batch are more passes than anybody's devices would save."""

MOST_LANES = 64

MOST_METRICS = 1_000
"""Of one evaluation: all of them stay on record, and are in every answer about the trial."""

BATCH_SIZES = ("bs", "batch_size", "seq_len")
"""Hyper-parameters by which trials read other batches; such trials are not packed together."""

DATA = "data"
"""The hyper-parameter that says which streams of data are learned from, and in which shares."""

DATA_SEED = "data_seed"
"""The hyper-parameter that orders the data, in which the repeats of a trial differ."""

__all__ = ["DATA", "DATA_SEED", "LIMITS", "Limits", "check_names", "check_size", "check_trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most there may be.

    trials: of a study. segments: how often the hyper-parameters of one trial may change. steps: of a trial.
    evaluations: of a trial. nodes: of a search plan. parameters: hyper-parameters of a trial, and what is free in a
    space. bytes: of a study file or a request's body, as JSON. depth: how deep its objects and lists may be nested.
    """

    trials: int = 100_000
    segments: int = 10_000
    steps: int = 10**9
    evaluations: int = 100_000
    nodes: int = 1_000_000
    parameters: int = 1_000
    bytes: int = 2**20
    depth: int = 50


LIMITS = Limits()
"""The limits that hold where an operator has set none."""

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Most values are of one of these: what else one may be takes ten times as long to ask."""


def check_size(value: Any, limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for JSON that is too large, too deep, or holds a number that no float can."""
    size = 0
    for item, path in _walk(value, limits.depth):
        size += len(item) + 2 if isinstance(item, str) else 2
        if size > limits.bytes:
            raise SequenceError("", f"must be at most {limits.bytes:,} bytes of JSON")
        if isinstance(item, int) and not -sys.float_info.max <= item <= sys.float_info.max:
            raise SequenceError(path, f"must be a number from -1.8e308 to 1.8e308, got one of {item.bit_length()} bits")


def _walk(value: Any, depth: int) -> Iterator[tuple[Any, str]]:
    """Every key and every value that holds no others, with its path; without recursion, whatever is in there."""
    ways = [iter([(value, "")])]
    while ways:
        item, path = next(ways[-1], (ways, ""))
        if item is ways:
            ways.pop()
        elif type(item) in PLAIN:
            yield item, path
        else:
            item = item.to_json() if isinstance(item, Sequence) else item
            holds = isinstance(item, list | tuple | Mapping)
            if holds and len(ways) > depth:
                raise SequenceError(path, f"must not be nested deeper than {depth} levels")
            if holds:
                ways.append(_inside(item, path))
            yield "" if holds else item, path


def _inside(item: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(item, Mapping):
        for name, value in item.items():
            yield str(name), path
            yield value, f"{path}.{name}" if path else str(name)
    else:
        for number, value in enumerate(item):
            yield value, f"{path}[{number}]"


def check_names(names: Iterable[str], limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for names of hyper-parameters that are too many, or that nobody could read."""
    for number, name in enumerate(names, 1):
        if number > limits.parameters:
            raise SequenceError("", f"must name at most {limits.parameters:,} hyper-parameters")
        if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in name):
            raise SequenceError("", f"must name its hyper-parameters without control characters, got {name!r}")


def check_trial(hp: Mapping[str, Any], steps: int, every: int | None = None, limits: Limits = LIMITS) -> int:
    """How often a trial changes: `hp` for `steps` steps, evaluated after `every` so many.

    Raises `SequenceError` where that or anything else is too much, for what is no sequence, and for values that are no
    finite numbers.
    """
    check_names(hp, limits)
    check_size(hp, limits)
    return check_changes(hp, steps, every, limits)


def check_changes(hp: Mapping[str, Any], steps: int, every: int | None = None, limits: Limits = LIMITS) -> int:
    """The same of a trial whose names and size were checked."""
    check_steps("steps", steps, every, limits)
    changes = 0
    for name, sequence in hp.items():
        changes += _changes(name, sequence, steps, limits.segments)
        if changes > limits.segments:
            most = f"at most {limits.segments:,} times in a trial, all hyper-parameters together"
            raise SequenceError(name, f"must change {most}, and within {_number(steps)} steps it does more often")
    return changes


def _changes(name: str, sequence: Any, steps: int, most: int) -> int:
    try:
        return _counted(json.dumps(_plain(sequence)), steps, most)
    except SequenceError as error:
        raise SequenceError(".".join(filter(None, (name, error.field))), error.problem) from None


def _plain(sequence: Any) -> Any:
    return sequence.to_json() if isinstance(sequence, Sequence) else sequence


@lru_cache(maxsize=16384)
def _counted(text: str, steps: int, most: int) -> int:
    """Kept, since a space repeats few sequences many times."""
    return count_changes(parse_text(text), steps, most)


def check_steps(field: str, steps: int, every: int | None, limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for too many steps, or too many evaluations on the way."""
    if steps > limits.steps:
        raise SequenceError(field, f"must be at most {limits.steps:,} steps, got {_number(steps)}")
    if every is not None and steps // every > limits.evaluations:
        raise SequenceError(
            field,
            f"must have at most {limits.evaluations:,} evaluations on the way; every {every} steps, {steps} have more",
        )


def count_changes(sequence: Sequence, steps: int, most: int) -> int:
    """How many pieces a sequence has before `steps`, counted no further than one more than `most`.

    Raises `SequenceError` where its values are no finite numbers.
    """
    pieces = takewhile(lambda each: each[0].start < steps, with_ends(sequence.pieces()))
    counted = 0
    for piece, end in islice(pieces, most + 1):
        _check_values(piece, min(steps, end or steps))
        counted += 1
    return counted


def _check_values(piece: Piece, end: int) -> None:
    """The first value of a piece and the last: no form goes out of bounds and comes back."""
    for step in (piece.start, end - 1):
        value = piece.form.at(step)
        if isinstance(value, float) and not math.isfinite(value):
            raise SequenceError("", f"must stay a finite number, and is {value} at step {step}")


def _number(value: int) -> str:
    """A number in a sentence, however many digits it has."""
    return f"{value:,}" if abs(value) < 10**18 else f"{value:.1e}" if abs(value) < 10**300 else "far more"
