"""Hyper-parameter values and their equality.

Values keep their type: 1, 1.0 and true are three values, though Python calls them equal.

>>> is_same_value(1, 1.0), is_same_value(1, True), is_same_value(0.0, -0.0)
(False, False, False)
>>> is_equal_value(1, 1.0), is_equal_value(1, True)
(True, False)
>>> number_from(64.0, 16, 4), number_from(64.0, 16, 4.0), number_from(0.5, 16, 4)
(64, 64.0, 0.5)

A mix has weights of named streams, for example of training data. `{mix: {web: 0.7, code: 0.3}}` is allowed like any
other value. The value is a string with the share of each stream, the same for every way to write the mix.

>>> mix_value({"mix": {"web": 7, "code": 3}})
'code:0.3,web:0.7'
>>> mix_value({"mix": {"web": 2, "code": 0}})
'web'
>>> shares("code:0.3,web:0.7")
{'code': 0.3, 'web': 0.7}
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from struct import pack
from typing import Any, TypeGuard


class SequenceError(ValueError):
    """An invalid sequence: `field` is the path inside it, `problem` a sentence about the error."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field, self.problem = field, problem

    def nested_field(self, path: str) -> str:
        """The path of the error inside `path`; either may be empty."""
        return f"{path}{'.' if path and self.field and not self.field.startswith('[') else ''}{self.field}"


Scalar = bool | int | float | str | None | tuple["Scalar", ...]
"""A value of a hyper-parameter. A list is one value too, held as a tuple, which is immutable."""

LARGEST_EXACT = 2**53
"""Above this, floats do not represent every whole number."""


def is_same_value(one: Any, other: Any) -> bool:
    """Whether two hyper-parameter or JSON values are the same in type and in every bit."""
    return one is other or _is_same(one, other, _is_same_scalar)


def is_equal_value(one: Any, other: Any) -> bool:
    """Whether two values are equal as users mean it: 1 matches 1.0, but booleans are not numbers."""
    return one is other or _is_same(one, other, _is_equal_scalar)


def equality_key(value: Any) -> Hashable:
    """Equal for two values exactly if `is_equal_value` says that they are."""
    if isinstance(value, Mapping):
        return frozenset((name, equality_key(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(equality_key, value))
    return isinstance(value, bool), value


def unique_values(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions, in order of first appearance."""
    unique = dict[str, Any]()
    for value in values:
        unique.setdefault(repr(value), value)
    return list(unique.values())


def as_lists(value: Scalar) -> Any:
    """The value as JSON and trainers have it: with a new list for each tuple."""
    return [as_lists(item) for item in value] if isinstance(value, tuple) else value


def as_tuples(value: Any) -> Any:
    """A value from JSON, with a tuple for each list."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def _is_same(one: Any, other: Any, is_same_scalar: Callable[[Any, Any], bool]) -> bool:
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(_is_same(value, other[name], is_same_scalar) for name, value in one.items())
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(_is_same(*pair, is_same_scalar) for pair in zip(one, other, strict=True))
        )
    return is_same_scalar(one, other)


def _is_same_scalar(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    return pack("d", one) == pack("d", other) if isinstance(one, float) else bool(one == other)


def _is_equal_scalar(one: Any, other: Any) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def common_numbers(*numbers: float) -> tuple[float, ...]:
    """The numbers of a schedule: unchanged if all are ints, otherwise all as floats."""
    for each in numbers:
        if not isinstance(each, int) or abs(each) >= LARGEST_EXACT:
            return tuple(map(float, numbers))
    return numbers


def number_from(value: float, *numbers: float) -> float:
    """A value computed from the `numbers` of a schedule: an int if they are all ints and it is whole, else a float."""
    exact = float(value)
    for each in numbers:
        if not isinstance(each, int):
            return exact
    return whole_number(exact)


def whole_number(value: float) -> float:
    """The value as an int if it is whole and exact, otherwise unchanged."""
    return int(value) if value.is_integer() and abs(value) < LARGEST_EXACT else value


_BETWEEN, _BESIDE = ",", ":"
_EXAMPLE = "{mix: {web: 0.7, code: 0.3}}"


def mix(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A mix as a space or a sequence writes it. Weights are numbers >= 0 or distributions; only their ratios count."""
    return {"mix": dict(weights)}


def is_mix(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and value.keys() == {"mix"}


def mix_value(written: Mapping[str, Any], path: str = "") -> str:
    """The normal form of a mix: each stream with its share, sorted by name, or the name alone for one stream.

    Raises `SequenceError`.
    """
    path, weights = f"{path}.mix".strip("."), written["mix"]
    if not isinstance(weights, Mapping) or not weights:
        raise SequenceError(path, f"must map names of streams to their weights, got {weights!r}")
    exact = {check_stream(name, path): _weight(weight, f"{path}.{name}") for name, weight in weights.items()}
    if not (total := sum(exact.values())):
        raise SequenceError(path, "must have a weight above 0")
    parts = {name: float(exact[name] / total) for name in sorted(exact)}
    return _format_shares({name: share for name, share in parts.items() if share})


def shares(value: Any) -> dict[str, float]:
    """The share of each stream in a value of the hyper-parameter `data`: a mix, or the name of one stream.

    Accepts both the trainer's string and the object of a study file. Raises ValueError.
    """
    text = mix_value(value) if is_mix(value) else value
    if not isinstance(text, str):
        raise ValueError(f"must be the name of a stream, or a mix such as {_EXAMPLE}, not {value!r}")
    if _BESIDE not in text:
        return {check_stream(text, ""): 1.0}
    try:
        by_stream = {name: float(share) for name, share in (part.split(_BESIDE) for part in text.split(_BETWEEN))}
    except ValueError:
        by_stream = {}
    if _format_shares(dict(sorted(by_stream.items()))) != text or not _is_whole(list(by_stream.values())):
        raise ValueError(f"must be a mix such as {_EXAMPLE}, not {text!r}")
    return by_stream


def _is_whole(parts: list[float]) -> bool:
    return min(parts) > 0 and abs(sum(parts) - 1) < 1e-9


def _format_shares(parts: Mapping[str, float]) -> str:
    return _BETWEEN.join(parts if len(parts) == 1 else (f"{name}{_BESIDE}{share!r}" for name, share in parts.items()))


def _weight(weight: Any, path: str) -> Fraction:
    """The exact decimal as written: 0.1 is a tenth."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight <= sys.float_info.max:
        raise SequenceError(path, f"must be a finite number from 0 on, got {weight!r}")
    return Fraction(repr(weight))


def check_stream(name: Any, path: str) -> str:
    """Return the name of a stream. Raises `SequenceError`."""
    if not isinstance(name, str) or not name or set(name) & {_BETWEEN, _BESIDE}:
        raise SequenceError(path, f"must name a stream by a string without , and :, got {name!r}")
    return name
