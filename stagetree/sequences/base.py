"""Sequences: their pieces, the canonical form of these, and parsing from JSON."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import cache
from itertools import islice, pairwise
from typing import Any, ClassVar

from stagetree.sequences.forms import Held, Piece
from stagetree.sequences.values import Scalar, SequenceError, is_mix, mix_value


class Sequence:
    """A hyper-parameter as a function of the step. Subclasses are the families; all are immutable.

    Two sequences are equal if they are of one family and their fields have equal values of equal types.
    """

    family: ClassVar[str]
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        """The pieces in order, where t = 0 is at step `origin`. May be infinite, but must keep changing."""
        raise NotImplementedError

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        """The pieces from step `since` on. Families with many pieces override this to skip the first ones."""
        return pieces_from(since, self._pieces(origin))

    def pieces(self, origin: int = 0) -> Iterator[Piece]:
        """The canonical pieces: neighbours differ, and every constant piece is a `Held`.

        The first step of a moving form is a `Held` piece of its own. So a decay that begins at the current value shares
        its first step with a trial that keeps that value. A form that continues across two parts of a sequence is one
        piece.
        """
        return _canonical(self._pieces(origin))

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
    def length_field(cls, written: Mapping[str, Any]) -> str | None:
        """The name of the field that may be omitted if the trial's length is given, or None. written: the fields."""
        return None

    @classmethod
    def fill_length_field(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """The fields as written, completed for a trial of `steps` steps."""
        return dict(written)

    def decay_span(self) -> tuple[int, int] | None:
        """The steps at which its decay starts and ends; None without one."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `parse` reads back."""
        names: tuple[str, ...] = self.__match_args__  # type: ignore[attr-defined]  # families are dataclasses
        values = {name: getattr(self, name) for name in names}
        return {
            "family": self.family,
            **{name: value if type(value) in _BARE else _plain(value) for name, value in values.items()},
        }


def with_ends(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, int | None]]:
    """Each piece with the start of the next one, which is None for the last."""
    before = next(pieces)
    for piece in pieces:
        yield before, piece.start
        before = piece
    yield before, None


def pieces_from(start: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces from step `start` on. The first is the one that contains `start`, cut to begin there."""
    for piece, end in with_ends(pieces):
        if end is None or end > start:
            yield Piece(max(piece.start, start), piece.form)


def _canonical(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Split off the first step of each piece as a constant, and drop repetitions."""
    last = ""
    for piece, end in with_ends(_merge_equal(pieces)):
        first = piece if isinstance(piece.form, Held) else Piece(piece.start, Held(piece.form.at(piece.start)))
        if first.form.name != last:
            yield first
            last = first.form.name
        if first is not piece and not piece.form.is_held and (end is None or end > piece.start + 1):
            yield Piece(piece.start + 1, piece.form)
            last = piece.form.name


def _merge_equal(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Drop empty pieces, and merge neighbours with the same form."""
    before, last = next(pieces), ""
    for piece in pieces:
        if piece.start > before.start and before.form.name != last:
            yield before
            last = before.form.name
        before = piece
    if before.form.name != last:
        yield before


_BARE = frozenset({bool, int, float, str, type(None)})


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if not isinstance(value, list | tuple):
        return value
    return [item if type(item) in _BARE else _plain(item) for item in value]


_MOST_PIECES = 10_000
"""A sequence with more pieces counts as endless."""


def last_change(sequence: Sequence) -> int | None:
    """The step from which all values are equal; None if they never are, or if there are too many pieces to tell.

    A form may have the final value before its end: the last step of a warm-up has that of its target.
    """
    pieces = list(islice(sequence.pieces(), _MOST_PIECES + 1))
    if len(pieces) > _MOST_PIECES or not pieces[-1].form.is_held:
        return None
    last, step = pieces[-1], pieces[-1].start
    for piece in reversed(pieces[:-1]):
        step = _held_since(piece, step, last.form.name)
        if step > piece.start:
            break
    return step


def _held_since(piece: Piece, end: int, value: str) -> int:
    """The first of the steps in [start, end] from which a piece has only this value, given as the name of a `Held`.

    Forms are monotone, or alternate in sign: then no two neighbours are equal.
    """

    def is_reached(step: int) -> bool:
        return Held(piece.form.at(step)).name == value

    for step in range(end - 1, max(piece.start, end - 2) - 1, -1):
        if not is_reached(step):
            return step + 1
    return bisect_left(range(piece.start, end), True, key=is_reached) + piece.start


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SequenceError(name, f"must be a finite number, got {value!r}")


MOST_STEPS = 2**52
"""Up to this step, floats are exact to half a step."""


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
    """A scalar, a list of them or a mix of streams. A list is returned as a tuple, a mix in its normal form."""
    if is_mix(value):
        return mix_value(value, name)
    if isinstance(value, list | tuple):
        return tuple(read_scalar(f"{name}[{number}]", item) for number, item in enumerate(value))
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
"""The families by name. The package's `__init__` fills it, because some families contain sequences of any family."""


def parse(value: Any, path: str = "") -> Sequence:
    """Parse a sequence from JSON: a bare value is a constant, an object names its `family` and its fields.

    Raises `SequenceError` whose `field` begins with `path`.
    """
    if isinstance(value, Sequence):
        return value
    if not isinstance(value, Mapping) or is_mix(value):
        return FAMILIES["constant"](read_scalar(path, value))  # type: ignore[call-arg]
    try:
        return _family(value)(**{name: item for name, item in value.items() if name != "family"})
    except SequenceError as error:
        raise SequenceError(error.nested_field(path), error.problem) from None


def _family(value: Mapping[str, Any]) -> type[Sequence]:
    """The class named by `value`, after checking the names of the fields."""
    name = value.get("family")
    if name is None and (meant := matching_families(value)):
        raise SequenceError("family", f"is missing: {meant} has these fields")
    if name is None and (hint := _notation_hint(value)):
        raise SequenceError("", f"must be a sequence, which names its family, or a distribution: {hint}")
    if name is None:
        fields_of = ", ".join(map(str, value))
        example = "{uniform: [lowest, highest]} or {family: exponential, init: 0.1, gamma: 0.9}"
        raise SequenceError(
            "", f"must be a distribution or a sequence, such as {example}, got an object with {fields_of}"
        )
    if not isinstance(name, str) or name not in FAMILIES:
        raise SequenceError(
            "family", f"must be one of {', '.join(FAMILIES)}, got {name!r}{did_you_mean(name, FAMILIES)}"
        )
    known, needed = _field_names(name)
    if needed <= value.keys() <= known:
        return FAMILIES[name]
    expected: tuple[Field[Any], ...] = fields(FAMILIES[name])  # type: ignore[arg-type]
    for field_name in sorted(map(str, value.keys() - {"family", *(field.name for field in expected)})):
        hint = did_you_mean(field_name, [field.name for field in expected])
        raise SequenceError(field_name, f"is not a field of {name}, which has {_field_list(expected)}{hint}")
    for field in expected:
        if field.name not in value and field.default is MISSING:
            raise SequenceError(field.name, f"is missing: {name} needs {_field_list(expected)}")
    return FAMILIES[name]


@cache
def _field_names(family: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that an object of a family may have, and the required ones among them."""
    expected: tuple[Field[Any], ...] = fields(FAMILIES[family])  # type: ignore[arg-type]
    needed = (field.name for field in expected if field.default is MISSING)
    return frozenset({"family", *(field.name for field in expected)}), frozenset(needed)


def _notation_hint(value: Mapping[str, Any]) -> str:
    """A hint for the notations of other tools; empty if none is recognised."""
    if "grid_search" in value:
        return "write the list alone, with the tuner grid, instead of grid_search"
    if "values" in value and value.keys() <= {"values", "distribution"}:
        return "write {choice: [...]}, or the list alone"
    if not value.keys() & {"low", "high", "log", "uniform"}:
        is_mix_meant = "mix" in value or (value and all(isinstance(each, int | float) for each in value.values()))
        return "a mix of streams is {mix: {web: 0.7, code: 0.3}}, with nothing beside it" if is_mix_meant else ""
    return f"write {{{'loguniform' if value.get('log') else 'uniform'}: [low, high]}}"


def matching_families(value: Mapping[str, Any]) -> str:
    """The families that have these fields, for an object without `family`; empty if none fits."""
    named = [
        name
        for name, family in FAMILIES.items()
        if name != "constant"
        and value.keys() <= {field.name for field in fields(family)}  # type: ignore[arg-type]
        and all(field.name in value for field in fields(family) if field.default is MISSING)  # type: ignore[arg-type]
    ]
    return " or ".join(named)


def _field_list(expected: tuple[Field[Any], ...]) -> str:
    return ", ".join(field.name for field in expected)


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """A hint that ends the sentence which refuses `name`: the closest known name, if one is close.

    Otherwise the only name that contains it, such as val_accuracy for acc.
    """
    given, known = str(name), list(names)
    longer = [each for each in known if len(given) > 2 and given in each]
    close = get_close_matches(given, known, n=1) or (longer if len(longer) == 1 else [])
    return f"; did you mean {close[0]}?" if close else ""
