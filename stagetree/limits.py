"""Limits on requests. They are checked before anything is created.

The limits are far above the needs of studies. They protect against typing errors: a single request could otherwise keep
every process of a service busy forever.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagetree.sequences import Piece, Sequence, SequenceError
from stagetree.sequences.tape import constant_piece, tape_of_text
from stagetree.sequences.text_cache import cached_by_text

LANES = 8
"""The width for `packing: true`. More lanes gain little on few devices, and unused lanes are computed too."""

MOST_SHARDS = 1024
"""Each part of a batch needs its own pass, so more parts would not pay on any device."""

MOST_LANES = 64

MOST_METRICS = 1_000
"""Metrics of one evaluation. They are stored, and are in every answer about the trial."""

BATCH_SIZES = ("bs", "batch_size", "seq_len")
"""Hyper-parameters that change the batches. Trials in which they differ are not packed together."""

DATA = "data"
"""The hyper-parameter that sets the streams of data and their shares."""

DATA_SEED = "data_seed"
"""The hyper-parameter that orders the data. Repeats of a trial differ in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    trials: int = 100_000
    """Trials of a study."""
    segments: int = 10_000
    """How often the hyper-parameters of one trial may change."""
    steps: int = 10**9
    """Steps of a trial."""
    evaluations: int = 100_000
    """Evaluations of a trial."""
    nodes: int = 1_000_000
    """Nodes of a search plan."""
    parameters: int = 1_000
    """Hyper-parameters of a trial, or free parameters of a space."""
    bytes: int = 2**20
    """Size of a study file or a request's body, as JSON."""
    depth: int = 50
    """Nesting depth of objects and lists."""


LIMITS = Limits()
"""The default limits."""

MOST_PATH = 1_000
"""The characters in the names on the way to a value. Refusals name the place of each value, so it must be short."""


SMALL = 300
"""An integer of up to 300 characters is below the largest float."""


def check_size(value: Any, limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for JSON that is too large, too deep, or holds a number that no float can.

    It is never written as a whole: aliases in 300 bytes of YAML can stand for terabytes of JSON.
    """
    size = 0
    for item in (walk := JsonWalk(value)):
        size += len(item) + 2 if isinstance(item, str) else 2
        if size > limits.bytes:
            raise SequenceError("", f"must be at most {limits.bytes:,} bytes of JSON")
        if walk.path_length > MOST_PATH:
            raise SequenceError("", f"must not hold values below names of more than {MOST_PATH:,} characters in all")
        if type(item) in PLAIN:
            if isinstance(item, int) and not -sys.float_info.max <= item <= sys.float_info.max:
                got = f"got one of {item.bit_length()} bits"
                raise SequenceError(walk.path, f"must be a number from -1.8e308 to 1.8e308, {got}")
        elif walk.depth >= limits.depth:
            raise SequenceError(walk.path, f"must not be nested deeper than {limits.depth} levels")


def _small_texts(values: Mapping[str, Any], limits: Limits) -> dict[str, str] | None:
    """The JSON of each value, if these alone show that no limit is reached, as for nearly all trials; else None.

    They are written ten times as fast as the values are walked through.
    """
    try:
        texts = {name: _text(value) for name, value in values.items()}
    except (TypeError, ValueError, RecursionError):
        return None
    size = sum(len(name) + len(text) + len('"": ,') for name, text in texts.items())
    depth = 1 + max((text.count("{") + text.count("[") for text in texts.values()), default=0)
    return texts if size <= min(SMALL, limits.bytes // 2) and depth < limits.depth else None


def _plain(sequence: Any) -> Any:
    return sequence.to_json() if isinstance(sequence, Sequence) else sequence


_text = json.JSONEncoder(default=_plain).encode


def check_name_count(number: int, limits: Limits) -> None:
    """Raise `SequenceError` for too many hyper-parameters."""
    if number > limits.parameters:
        raise SequenceError("", f"must name at most {limits.parameters:,} hyper-parameters")


def check_names(names: Iterable[str], limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for too many, too long or unreadable names of hyper-parameters."""
    for number, name in enumerate(names, 1):
        check_name_count(number, limits)
        if not name.isprintable() and any(ord(each) < 32 or 127 <= ord(each) < 160 for each in name):
            raise SequenceError("", f"must name its hyper-parameters without control characters, got {name!r}")


def check_trial(hp: Mapping[str, Any], steps: int, every: int | None = None, limits: Limits = LIMITS) -> int:
    """The number of changes in a trial: `hp` for `steps` steps, with an evaluation every `every` steps.

    Raises `SequenceError` for anything over the limits, invalid sequences, and values that are not finite.
    """
    check_names(hp, limits)
    if (texts := _small_texts(hp, limits)) is None:
        check_size(hp, limits)
        texts = {name: _text(sequence) for name, sequence in hp.items()}
    check_steps("steps", steps, every, limits)
    changes = 0
    for name, text in texts.items():
        changes += _changes(name, hp[name], text, steps, limits.segments)
        if changes > limits.segments:
            most = f"at most {limits.segments:,} times in a trial, all hyper-parameters together"
            raise SequenceError(name, f"must change {most}, and within {_number(steps)} steps it does more often")
    return changes


def _changes(name: str, sequence: Any, text: str, steps: int, most: int) -> int:
    """text: the sequence's JSON, which the caches keep. Constants have many values, so they are counted without it."""
    try:
        if steps >= 1 and (only := constant_piece(sequence)):
            _check_values(only[0], steps)
            return 1
        return _count_changes(text, steps, most)
    except SequenceError as error:
        raise SequenceError(error.nested_field(name), error.problem) from None


def check_steps(field: str, steps: int, every: int | None, limits: Limits = LIMITS) -> None:
    """Raise `SequenceError` for too many steps or evaluations."""
    if steps > limits.steps:
        raise SequenceError(field, f"must be at most {limits.steps:,} steps, got {_number(steps)}")
    if every is not None and steps // every > limits.evaluations:
        raise SequenceError(
            field,
            f"must have at most {limits.evaluations:,} evaluations on the way; every {every} steps, {steps} have more",
        )


@cached_by_text(16384)
def _count_changes(text: str, steps: int, most: int) -> int:
    """The number of pieces of a sequence before `steps`, given its JSON. Stops counting at `most` + 1.

    Cached, because a space repeats few sequences many times. Raises `SequenceError` if its values are not finite.
    """
    pieces = tape_of_text(text).pieces_before(steps, most + 2)
    ends = [*(piece.start for piece in pieces[1:]), steps]
    counted = min(len(pieces), most + 1)
    for piece, end in zip(pieces[:counted], ends, strict=False):
        _check_values(piece, end)
    return counted


def _check_values(piece: Piece, end: int) -> None:
    """Check the first and last value of a piece. Every form is monotonic, so no value between exceeds them."""
    for step in (piece.start,) if piece.form.is_held else (piece.start, end - 1):
        value = piece.form.at(step)
        if isinstance(value, float) and not math.isfinite(value):
            raise SequenceError("", f"must stay a finite number, and is {value} at step {step}")


def _number(value: int) -> str:
    """A whole number for a sentence; shortened if it is very long."""
    return f"{value:,}" if abs(value) < 10**18 else f"{value:.1e}" if abs(value) < 10**300 else "far more"


PLAIN = frozenset({str, int, float, bool, type(None)})
"""Most values have one of these types. An isinstance check against abstract types takes ten times as long."""

Entries = Iterator[tuple[str | int | None, Any]]


class JsonWalk:
    """Iterates over every key, container and leaf of a value, without recursion. A sequence counts as its JSON.

    The place of the last one is written out only on demand: all paths of a long list under a long name together are
    many times as long as the JSON itself.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._names: list[str | int | None] = []
        self._lengths: list[int] = []
        self._is_at_key = False

    @property
    def depth(self) -> int:
        """The number of containers around the last item."""
        return len(self._names) - 1

    @property
    def path_length(self) -> int:
        """The number of characters in the names on the way to the last item's container."""
        return self._lengths[-1]

    @property
    def path(self) -> str:
        """The place of the last item, such as `space.lr[1]`; of a key, the place of its object."""
        names = self._names[:-1] if self._is_at_key else self._names
        parts = (f"[{name}]" if isinstance(name, int) else f".{name}" for name in names if name is not None)
        return "".join(parts).removeprefix(".")

    def __iter__(self) -> Iterator[Any]:
        ways: list[Entries] = [iter([(None, self._value)])]
        self._names, self._lengths = [None], [0]
        while ways:
            if (entry := next(ways[-1], None)) is None:
                for stack in (ways, self._names, self._lengths):
                    stack.pop()
                continue
            self._names[-1], item = entry
            if isinstance(name := self._names[-1], str):
                self._is_at_key = True
                yield name
                self._is_at_key = False
            item = item.to_json() if isinstance(item, Sequence) else item
            yield item
            if type(item) not in PLAIN and isinstance(item, list | tuple | Mapping):
                ways.append(_entries(item))
                self._lengths.append(self._lengths[-1] + len(str(self._names[-1] or "")))
                self._names.append(None)


def _entries(container: Any) -> Entries:
    if isinstance(container, Mapping):
        return ((str(name), item) for name, item in container.items())
    return iter(enumerate(container))
