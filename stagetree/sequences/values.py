"""Hyper-parameter values and their equality.

Values keep their type: 1, 1.0 and true are three values, though Python calls them equal.

>>> is_same_value(1, 1.0), is_same_value(1, True), is_same_value(0.0, -0.0)
(False, False, False)
>>> is_equal_value(1, 1.0), is_equal_value(1, True)
(True, False)
>>> number_from(64.0, 16, 4), number_from(64.0, 16, 4.0), number_from(0.5, 16, 4)
(64, 64.0, 0.5)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from struct import pack
from typing import Any

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
