"""From a configuration back to the values that it was made of: which option of each choice, which number of each range.

A constant fits where it is written as in the pattern: 1, 1.0 and true are three options. Where none fits so, 1 is found
where 1.0 is written, since people write either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stagetree.sequences import is_equal_value, is_fraction, is_mix, is_same_value
from stagetree.space.distributions import Choice, Range, weights_of

Values = dict[str, Any]
"""By the place of a distribution, as `fill` names it, its value."""


def values_of(pattern: Any, path: str, value: Any, steps: int | None = None) -> Values | None:
    """The values, by place, with which a pattern becomes JSON; None if it cannot become that.

    steps: of the trial, for the fractions in the pattern.
    """
    exact = _Fitting(steps, is_same_value).values(pattern, path, value)
    return _Fitting(steps, is_equal_value).values(pattern, path, value) if exact is None else exact


@dataclass(frozen=True, slots=True)
class _Fitting:
    """steps: of the trial. fits: whether a constant of the pattern, or a number of a range, is the value."""

    steps: int | None
    fits: Callable[[Any, Any], bool]

    def values(self, pattern: Any, path: str, value: Any) -> Values | None:
        if is_mix(pattern) and isinstance(pattern["mix"], Mapping):
            weights = weights_of(pattern["mix"], value)
            return None if weights is None else values_of(pattern["mix"], f"{path}.mix", weights)
        value = bare(pattern, value)
        match pattern:
            case Choice(options=options):
                inside = [self.values(option, f"{path}[{number}]", value) for number, option in enumerate(options)]
                return _chosen(pattern, inside, path)
            case Range():
                return self._drawn(pattern, value, path)
            case dict():
                if not isinstance(value, Mapping) or not pattern.keys() <= value.keys():
                    return None
                items = pattern.items()
                return _joined([self._inside(item, f"{path}.{name}", value[name], value) for name, item in items])
            case list():
                if not isinstance(value, list) or len(value) != len(pattern):
                    return None
                pairs = enumerate(zip(pattern, value, strict=True))
                return _joined([self._inside(item, f"{path}[{number}]", old, {}) for number, (item, old) in pairs])
        return {} if self.fits(pattern, value) else None

    def _inside(self, item: Any, path: str, value: Any, owner: Mapping[str, Any]) -> Values | None:
        """The values in a field of `owner`, or in an item of a list."""
        if not is_fraction(item):
            return self.values(item, path, value)
        whole = owner.get(item["of"]) if "of" in item else self.steps
        return None if not whole else self._ratio(item["ratio"], f"{path}.ratio", value, whole)

    def _ratio(self, pattern: Any, path: str, value: Any, whole: float) -> Values | None:
        """The values with which a fraction of `whole` is `value`; of all ratios that round to it, the one between."""
        if isinstance(pattern, Choice):
            inside = [self._ratio(option, f"{path}[{n}]", value, whole) for n, option in enumerate(pattern.options)]
            return _chosen(pattern, inside, path)
        is_drawn = isinstance(pattern, Range)
        ratio = pattern.near(value / whole) if is_drawn else pattern
        if math.floor(ratio * whole + 0.5) != value:
            return None
        return self._drawn(pattern, ratio, path) if is_drawn else {}

    def _drawn(self, distribution: Range, value: Any, path: str) -> Values | None:
        if not distribution.holds(value) or not self.fits(number := distribution.near(value), value):
            return None
        return {path: number} if distribution.low < distribution.high else {}


def _chosen(choice: Choice, inside: list[Values | None], path: str) -> Values | None:
    """The number of the first option that fits, and the values inside it."""
    for number, values in enumerate(inside):
        if values is not None:
            return ({path: number} if choice.low < choice.high else {}) | values
    return None


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
