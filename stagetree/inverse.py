"""From a configuration back to the values it is made of: what `Space.build` would need to make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.distributions import Choice, LogUniform, RandInt, Uniform

Values = dict[str, Any]


def values_of(pattern: Any, path: str, value: Any) -> Values | None:
    """The values, by place, with which a pattern becomes JSON; None if it cannot become that."""
    value = bare(pattern, value)
    match pattern:
        case Choice(options=options):
            inside = [values_of(option, f"{path}[{number}]", value) for number, option in enumerate(options)]
            return _chosen(pattern, inside, path)
        case Uniform() | LogUniform() | RandInt():
            return _drawn(pattern, value, path)
        case dict():
            if not isinstance(value, Mapping) or not pattern.keys() <= value.keys():
                return None
            return _joined([values_of(item, f"{path}.{name}", value[name]) for name, item in pattern.items()])
        case list():
            if not isinstance(value, list) or len(value) != len(pattern):
                return None
            pairs = enumerate(zip(pattern, value, strict=True))
            return _joined([values_of(item, f"{path}[{number}]", old) for number, (item, old) in pairs])
    return {} if pattern == value else None


def _chosen(choice: Choice, inside: list[Values | None], path: str) -> Values | None:
    """The number of the first option that fits, and the values inside it."""
    for number, values in enumerate(inside):
        if values is not None:
            return ({path: number} if choice.low < choice.high else {}) | values
    return None


def _drawn(distribution: Uniform | LogUniform | RandInt, value: Any, path: str) -> Values | None:
    kind = int if isinstance(distribution, RandInt) else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not distribution.low <= value <= distribution.high:
        return None
    return {path: value} if distribution.low < distribution.high else {}


def _joined(parts: list[Values | None]) -> Values | None:
    joined: Values = {}
    for part in parts:
        if part is None:
            return None
        joined |= part
    return joined


def bare(pattern: Any, value: Any) -> Any:
    """A constant as its bare value, unless the pattern spells the family out."""
    is_constant = isinstance(value, Mapping) and value.get("family") == "constant"
    return value["value"] if is_constant and not isinstance(pattern, dict | Choice) else value
