"""What a sequence is: pieces, their canonical form, and how it is read from JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, ClassVar

from stagetree.sequences.errors import SequenceError
from stagetree.sequences.forms import Held, Piece
from stagetree.sequences.mixes import is_mix, mix_value
from stagetree.sequences.scalars import Scalar


class Sequence:
    """A hyper-parameter as a function of the step. Subclasses are the families; all are immutable.

    Two sequences are equal if they are written with the same values, by type: constants of 1, 1.0 and true are three.
    """

    family: ClassVar[str]
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        """The pieces in order when step `origin` is its own t = 0. May be infinite, never without change."""
        raise NotImplementedError

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        """Those in force from step `since` on. A family with many pieces goes there without counting them all."""
        return in_force_from(since, self._pieces(origin))

    def pieces(self, origin: int = 0) -> Iterator[Piece]:
        """The canonical pieces: no two neighbours are the same, and what does not move is `Held`.

        The first step of a moving form is a value like any other, so it stands as a `Held` of its own: a decay that
        begins at the value held so far shares that step with whoever goes on holding it. A form that goes on where one
        part of a sequence meets the next is one piece.
        """
        return _canonical(_joined(self._pieces(origin)))

    def at(self, t: int) -> Scalar:
        """The value at step `t` >= 0."""
        if t < 0:
            raise ValueError(f"steps count from 0, got {t}")
        return self.take(t + 1, start=t)[0]

    def take(self, steps: int, *, start: int = 0) -> list[Scalar]:
        """The values at steps `start`, ..., `steps` - 1."""
        values: list[Scalar] = []
        for piece, end in with_ends(self.pieces()):
            until = steps if end is None else min(end, steps)
            values += map(piece.form.at, range(max(piece.start, start), until))
            if until == steps:
                break
        return values

    @classmethod
    def from_length(cls) -> str | None:
        """The field that may be left out where the trial's length is known; None for none."""
        return None

    @classmethod
    def with_length(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """Its fields as written without that one, and that one for a trial of `steps` steps."""
        return dict(written)

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `parse` reads back."""
        return {"family": self.family, **{field.name: _plain(getattr(self, field.name)) for field in _fields(self)}}


def with_ends(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, int | None]]:
    """Each piece with the start of the next, None for the last."""
    before = next(pieces)
    for piece in pieces:
        yield before, piece.start
        before = piece
    yield before, None


def in_force_from(start: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces from step `start` on; the one in force there begins there."""
    for piece, end in with_ends(pieces):
        if end is None or end > start:
            yield Piece(max(piece.start, start), piece.form)


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces that last, and of neighbours with the same form only the first."""
    last = ""
    for piece, end in with_ends(pieces):
        if (end is None or end > piece.start) and (name := piece.form.name) != last:
            yield piece
            last = name


def _canonical(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces with the first step of each as a value of its own, without repetitions."""
    last = ""
    for piece, end in with_ends(pieces):
        for part in _parts(piece, end):
            if (name := part.form.name) != last:
                yield part
                last = name


def _parts(piece: Piece, end: int | None) -> Iterator[Piece]:
    if end is not None and end <= piece.start:
        return
    yield Piece(piece.start, Held(piece.form.at(piece.start)))
    if not piece.form.is_held and (end is None or end > piece.start + 1):
        yield Piece(piece.start + 1, piece.form)


def _fields(sequence: Any) -> tuple[Field[Any], ...]:
    return fields(sequence)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


_MOST_PIECES = 10_000
"""A sequence with more of them is taken to have no end."""


def end_of(sequence: Sequence) -> int | None:
    """The step from which a sequence stays as it is; None where it never does, as far as can be told."""
    pieces = list(islice(sequence.pieces(), _MOST_PIECES + 1))
    is_over = len(pieces) <= _MOST_PIECES and pieces[-1].form.is_held
    return pieces[-1].start if is_over else None


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SequenceError(name, f"must be a finite number, got {value!r}")


MOST_STEPS = 2**52
"""Up to here a float is exact to half a step."""


def check_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SequenceError(name, f"must be a whole number of steps, at least {least}, got {value!r}")
    if value > MOST_STEPS:
        raise SequenceError(name, f"must be a whole number of steps, at most {MOST_STEPS}")


def check_scalar(name: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str | None):
        raise SequenceError(name, f"must be a number, a string, true, false or null, got {value!r}")
    if isinstance(value, float):
        check_number(name, value)


def read_scalar(name: str, value: Any) -> Scalar:
    """A value that may be a mix of streams, which is then written in its one form."""
    if is_mix(value):
        return mix_value(value, name)
    check_scalar(name, value)
    return value  # type: ignore[no-any-return]


def check_list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SequenceError(name, f"must be a list, got {value!r}")
    return tuple(value)


def check_milestones(value: Any) -> tuple[int, ...]:
    milestones = check_list("milestones", value)
    for number, milestone in enumerate(milestones):
        check_count(f"milestones[{number}]", milestone, least=0)
    for before, after in pairwise(milestones):
        if after <= before:
            raise SequenceError("milestones", f"must rise from one to the next, but {after} comes after {before}")
    return milestones


def set_field(frozen: Any, name: str, value: Any) -> None:
    object.__setattr__(frozen, name, value)


FAMILIES: dict[str, type[Sequence]] = {}
"""The families by name; the package fills it, since some of them hold sequences of any family."""


def parse(value: Any, path: str = "") -> Sequence:
    """The sequence that JSON writes: a bare value is a constant, an object names its `family` and its fields.

    Raises `SequenceError` whose `field` begins with `path`.
    """
    if isinstance(value, Sequence):
        return value
    if not isinstance(value, Mapping) or is_mix(value):
        return FAMILIES["constant"](read_scalar(path, value))  # type: ignore[call-arg]
    try:
        return _family(value)(**{name: item for name, item in value.items() if name != "family"})
    except SequenceError as error:
        raise SequenceError(".".join(filter(None, (path, error.field))), error.problem) from None


@lru_cache(maxsize=16384)
def parse_text(text: str) -> Sequence:
    """The same of JSON text. Kept: what is looked at once, before a trial begins, is looked at again, and spaces repeat
    few sequences many times.
    """
    return parse(json.loads(text))


def _family(value: Mapping[str, Any]) -> type[Sequence]:
    """The class that `value` names, after a look at the names of its fields."""
    name = value.get("family")
    if name is None and (meant := families_with(value)):
        raise SequenceError("family", f"is missing: {meant} has these fields")
    if name is None and (hint := _meant(value)):
        raise SequenceError("", f"must be a sequence, which names its family, or a distribution: {hint}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise SequenceError(
            "family", f"must be one of {', '.join(FAMILIES)}, got {name!r}{did_you_mean(name, FAMILIES)}"
        )
    expected: tuple[Field[Any], ...] = fields(FAMILIES[name])  # type: ignore[arg-type]
    for field_name in sorted(map(str, value.keys() - {"family", *(field.name for field in expected)})):
        hint = did_you_mean(field_name, [field.name for field in expected])
        raise SequenceError(field_name, f"is not a field of {name}, which has {_listed(expected)}{hint}")
    for field in expected:
        if field.name not in value and field.default is MISSING:
            raise SequenceError(field.name, f"is missing: {name} needs {_listed(expected)}")
    return FAMILIES[name]


def _meant(value: Mapping[str, Any]) -> str:
    """How to write what other tools write otherwise; empty if it is none of that."""
    if "grid_search" in value:
        return "write the list alone, with the tuner grid, in place of grid_search"
    if "values" in value and value.keys() <= {"values", "distribution"}:
        return "write {choice: [...]}, or the list alone"
    if not value.keys() & {"low", "high", "log", "uniform"}:
        is_mix_meant = "mix" in value or (value and all(isinstance(each, int | float) for each in value.values()))
        return "a mix of streams is {mix: {web: 0.7, code: 0.3}}, with nothing beside it" if is_mix_meant else ""
    return f"write {{{'loguniform' if value.get('log') else 'uniform'}: [low, high]}}"


def families_with(value: Mapping[str, Any]) -> str:
    """The families whose fields these are, where `family` was left out; empty if there is none, or it is not clear."""
    named = [
        name
        for name, family in FAMILIES.items()
        if name != "constant"
        and value.keys() <= {field.name for field in fields(family)}  # type: ignore[arg-type]
        and all(field.name in value for field in fields(family) if field.default is MISSING)  # type: ignore[arg-type]
    ]
    return " or ".join(named)


def _listed(expected: tuple[Field[Any], ...]) -> str:
    return ", ".join(field.name for field in expected)


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the one it was probably meant to be, if any is close.

    Else the only one of which it is a part: val_accuracy for acc.
    """
    given, known = str(name), list(names)
    longer = [each for each in known if len(given) > 2 and given in each]
    close = get_close_matches(given, known, n=1) or (longer if len(longer) == 1 else [])
    return f"; did you mean {close[0]}?" if close else ""
