"""Values and ranges of other tools, as entries of a space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any

from stagetree.sequences import SequenceError
from stagetree.space import plain
from stagetree.space.distributions import is_number
from stagetree.space.notation import lograndint, loguniform, randint, uniform
from stagetree.space.patterns import looks_like_range

MODES = {"minimize": "min", "maximize": "max"}
"""The mode of a study by the other tools' word."""

MOST_LISTED = 1000
"""The most multiples of a logarithmic range that are listed."""


def constant(value: Any, place: str) -> Any:
    """The entry of a value that is not searched. Raises `SequenceError`."""
    checked = option(value, place)
    is_read_otherwise = isinstance(checked, list) or (isinstance(checked, str) and looks_like_range(checked))
    return [checked] if is_read_otherwise else checked


def choice(values: Any, place: str, weights: Any = None) -> Any:
    """The entry of a choice among values. Raises `SequenceError`."""
    if not isinstance(values, list | tuple) or not values:
        raise SequenceError(place, f"must be a list of at least one value, got {values!r}")
    options = [option(value, f"{place}[{number}]") for number, value in enumerate(values)]
    return options if weights is None else {"choice": options, "weights": list(weights)}


def option(value: Any, place: str) -> Any:
    """One value: a scalar, or a list of values. Raises `SequenceError`."""
    if isinstance(value, list | tuple):
        return [option(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        fields = ", ".join(map(str, value))
        raise SequenceError(place, f"is an object ({fields}): give each of its fields a hyper-parameter of its own")
    if not isinstance(value, bool | int | float | str | None):
        raise SequenceError(place, f"must be a number, a text, true, false, null or a list of these, got {value!r}")
    return value


def number(value: Any, place: str) -> float:
    """A finite number. Raises `SequenceError`."""
    if not is_number(value):
        raise SequenceError(place, f"must be a number, got {value!r}")
    return value  # type: ignore[no-any-return]


def whole(value: Any, place: str) -> int:
    """A whole number. Raises `SequenceError`."""
    if isinstance(value, float) and value.is_integer():
        raise SequenceError(place, f"must be a whole number, got {value}: write {int(value)}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise SequenceError(place, f"must be a whole number, got {value!r}")
    return value


def evenly(low: float, high: float, step: Any = None) -> Any:
    """A uniform range of floats; in multiples of the step, which must divide `low`."""
    return plain(uniform(low, high, step))


def multiples(low: float, high: float, step: float, place: str, *, is_log: bool = False) -> Any:
    """The multiples of `step` to which a number from `low` to `high` rounds: whole numbers if the step is one.

    Raises `SequenceError` for a step that is no whole number and does not divide `low`, from which steps count here.
    """
    if step <= 0:
        raise SequenceError(place, f"must be above 0, got {step!r}")
    if not isinstance(step, int):
        if Decimal(repr(low)) % Decimal(repr(step)):
            raise SequenceError(place, f"must divide {low!r}, from which steps are counted here, got {step!r}")
        return plain((loguniform if is_log else uniform)(low, high, step))
    least, most = (round(bound / step) * step for bound in (low, high))
    if step == 1 and is_log:
        return plain(lograndint(least, most))
    if not is_log and low % step == 0:
        return plain(randint(least, math.floor(high), None if step == 1 else step))
    return _weighted(list(range(least, most + 1, step)), low, high, step, place, is_log=is_log)


def _weighted(values: list[int], low: float, high: float, step: int, place: str, *, is_log: bool) -> Any:
    """Whole numbers, each as likely as a number of the range is to round to it."""
    if not 0 < len(values) <= MOST_LISTED or (is_log and low <= 0):
        raise SequenceError(place, f"must leave 1 to {MOST_LISTED} multiples of a range above 0, got {len(values)}")
    measure = math.log if is_log else float
    edges = [low, *(value + step / 2 for value in values[:-1]), high]
    weights = [float(f"{measure(after) - measure(before):.6g}") for before, after in pairwise(edges)]
    return {"choice": values, "weights": weights}


def spaced(low: float, high: float, count: int) -> Iterable[float]:
    """`count` numbers from `low` to `high` at equal distances."""
    return [low] if count == 1 else [low + (high - low) * place / (count - 1) for place in range(count)]
