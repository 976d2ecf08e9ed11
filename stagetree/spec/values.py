"""What the values of fields are checked with: each returns the value as it is kept, or raises `SequenceError`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stagetree.limits import LANES, MOST_LANES
from stagetree.sequences import SequenceError, parse
from stagetree.space import plain, read_entry
from stagetree.space.where import WhereError
from stagetree.spec.errors import shown


def as_json(value: Any) -> Any:
    """The JSON of a value, with whole numbers and strings left as they are."""
    value = plain(value)
    _check_json(value, "")
    return value


def _check_json(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise SequenceError(path, f"must have strings for keys, got {name!r}")
            _check_json(item, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_json(item, f"{path}[{number}]")
    elif not isinstance(value, bool | int | float | str | None) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise SequenceError(
            path, f"must be a finite number, a string, true, false, null, a list or an object, got {value!r}"
        )


def as_sequence(value: Any) -> Any:
    """The JSON of a sequence, after a look whether it is one."""
    value = as_json(value)
    parse(value)
    return value


def as_entry(value: Any) -> Any:
    """The JSON of one entry of a space, after a look whether it is one."""
    value = as_json(value)
    read_entry(value)
    return value


def as_named(value: Any) -> Any:
    """A mapping by hyper-parameter, which names at least one."""
    if (isinstance(value, Mapping) and not all(value)) or value == {}:
        raise SequenceError("", f"must name at least one hyper-parameter, by strings that are not empty, got {value!r}")
    return value


def as_width(value: Any) -> Any:
    """How many lanes a pack has: true for as many as are usual, false for none, "auto" for as many as is fastest."""
    if isinstance(value, bool):
        return LANES if value else 0
    if value == "auto" or (isinstance(value, int) and 0 <= value <= MOST_LANES):
        return value
    raise SequenceError("", f"must be true, auto or a whole number from 0 to {MOST_LANES}, got {shown(value)}")


def as_where(value: Any) -> Any:
    """An expression or, in Python, a function."""
    if value is None or isinstance(value, str) or callable(value):
        return value
    raise WhereError(f"must be an expression over the space's hyper-parameters, in a string, got {shown(value)}")


def as_target(value: Any) -> Any:
    """A finite number, or some of them."""
    if value is None:
        return None
    for number in value if isinstance(value, list) and value else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise SequenceError("", f"must be a number, or a list of at least one number, got {shown(value)}")
    return value


def as_sink(value: str) -> str:
    """The address of a sink, after a look whether it is one that a study may name."""
    from stagetree.sinks import SinkError  # not on Windows, where a study file may be written
    from stagetree.sinks.opening import check_of_study

    try:
        check_of_study(value)
    except SinkError as error:
        raise SequenceError("", str(error)) from None
    return value
