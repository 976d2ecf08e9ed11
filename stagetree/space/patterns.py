"""Patterns: JSON in which a distribution can replace any value. Parsed once, then enumerated or sampled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

from stagetree.sequences import is_equal_value, is_fraction, is_mix, is_same_value
from stagetree.space.distributions import Choice, Distribution, Range, SpaceError, weights_of
from stagetree.space.notation import canonical, read_choice, read_range, written_name

_END = object()
_LOOKS_LIKE_A_RANGE = re.compile(r"\s*({0})\s*(?::|\.\.|,)\s*({0})\s*".format(r"\d*\.?\d+(?:e[+-]?\d+)?"))
"""Range notations of other tools. A constant that looks like this, such as 16:9, must be written as a choice of one."""

_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")

_MOST_RANGE = 100
"""The characters of a constant that may look like a range: the time to tell grows with their square."""

Choose = Callable[[str, Distribution], Any]
"""Returns the value of a distribution, given its place in the space."""


def random_choices(rng: Random) -> Choose:
    """Choose at random. Uses only `Random.random`, the one method whose numbers Python promises not to change."""
    return lambda path, distribution: distribution.at(rng.random())


def read_pattern(value: Any, path: str) -> Any:
    """Parse the pattern of a hyper-parameter. A list at the top level, and only there, is a choice. Raises
    `SpaceError`.
    """
    if isinstance(value, str) and _THOUSANDS.fullmatch(value):
        raise SpaceError(path, f"must be a value: write {value.replace(',', '')} for the number, got {value!r}")
    if isinstance(value, str) and (ends := looks_like_range(value)):
        written = f"{{uniform: [{ends[1]}, {ends[2]}]}}"
        raise SpaceError(path, f"must be a value or a distribution: a study has ranges as {written}, got {value!r}")
    value = canonical(value, path)
    return _choice({"choice": value}, path, path) if isinstance(value, list) else _read(value, path)


def looks_like_range(text: str) -> re.Match[str] | None:
    """The match of a text that may be meant as a range, such as 16:9 or 0.1..0.5."""
    return _LOOKS_LIKE_A_RANGE.fullmatch(text) if len(text) <= _MOST_RANGE else None


def _read(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_read(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if is_mix(value) and isinstance(value["mix"], Mapping):
        return {"mix": {name: _read(item, f"{path}.mix.{name}") for name, item in value["mix"].items()}}
    name = written_name(value, path)
    if name == "choice":
        return _choice(value, f"{path}.choice", path)
    if name is not None:
        return read_range(value, name, path)
    return {name: _read(item, f"{path}.{name}") for name, item in value.items()}


def _choice(value: Mapping[str, Any], path: str, owner: str) -> Choice:
    options, weights = read_choice(value, path, owner)
    return Choice(tuple(_read(option, f"{path}[{number}]") for number, option in enumerate(options)), path, weights)


def _unfold(pattern: Any) -> Iterator[Any]:
    """Every way to choose inside a pattern; the last choice varies fastest. Other distributions stay as they are."""
    match pattern:
        case Choice(options=options):
            yield from chain.from_iterable(map(_unfold, options))
        case dict():
            for items in _product(list(pattern.values())):
                yield dict(zip(pattern, items, strict=True))
        case list():
            yield from _product(pattern)
        case _:
            yield pattern


def _product(patterns: list[Any]) -> Iterator[list[Any]]:
    """The product of the choices of all patterns, lazily, because it may not fit in memory."""
    ways = [_unfold(pattern) for pattern in patterns]
    chosen = [next(way) for way in ways]
    while True:
        yield list(chosen)
        for place in reversed(range(len(ways))):
            following = next(ways[place], _END)
            if following is not _END:
                chosen[place] = following
                break
            ways[place] = _unfold(patterns[place])
            chosen[place] = next(ways[place])
        else:
            return


def count(pattern: Any) -> int:
    """The number of results of `_unfold`."""
    match pattern:
        case Choice(options=options):
            return sum(map(count, options))
        case dict():
            return math.prod(map(count, pattern.values()))
        case list():
            return math.prod(map(count, pattern))
        case _:
            return 1


def weight(pattern: Any) -> int:
    """The number of constants and distributions in a pattern: what one configuration costs."""
    match pattern:
        case Choice(options=items) | [*items]:
            return sum(map(weight, items))
        case dict():
            return sum(map(weight, pattern.values()))
    return 1


def has_range(pattern: Any) -> bool:
    """Whether the pattern contains a range that cannot be listed."""
    match pattern:
        case Choice(options=items) | [*items]:
            return any(map(has_range, items))
        case Range():
            return pattern.count() is None and pattern.low < pattern.high
        case dict():
            return any(map(has_range, pattern.values()))
    return False


def count_with_integers(pattern: Any) -> int:
    """The number of results of `unfold_entry` for the pattern from `list_integers`."""
    match pattern:
        case Choice(options=options):
            return sum(map(count_with_integers, options))
        case Range():
            return pattern.count() or 1
        case dict():
            return math.prod(map(count_with_integers, pattern.values()))
        case list():
            return math.prod(map(count_with_integers, pattern))
    return 1


def list_integers(pattern: Any) -> Any:
    """The pattern with whole-number ranges converted to choices. It must not contain other ranges."""
    match pattern:
        case Choice(options=options, path=path):
            return Choice(tuple(map(list_integers, options)), path)
        case Range():
            return pattern.at(0.0) if pattern.count() is None else Choice(pattern.listed())
        case dict():
            return {name: list_integers(item) for name, item in pattern.items()}
        case list():
            return list(map(list_integers, pattern))
    return pattern


def unfold_entry(pattern: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Like `_unfold`, with the path of the chosen option."""
    if isinstance(pattern, Choice):
        for number, option in enumerate(pattern.options):
            yield from unfold_entry(option, f"{pattern.path}[{number}]")
    else:
        for unfolded in _unfold(pattern):
            yield path, unfolded


def fill(pattern: Any, path: str, choose: Choose) -> Any:
    """Replace each distribution by a value from `choose`, in the order written."""
    match pattern:
        case Choice():
            number = choose(path, pattern)
            return fill(pattern.options[number], f"{path}[{number}]", choose)
        case Range():
            return choose(path, pattern)
        case dict():
            return {name: fill(item, f"{path}.{name}", choose) for name, item in pattern.items()}
        case list():
            return [fill(item, f"{path}[{number}]", choose) for number, item in enumerate(pattern)]
        case _:
            return pattern


def parameters_of(pattern: Any, path: str) -> Iterator[tuple[str, Distribution]]:
    """The distributions with more than one value, by the names that `fill` gives them."""
    match pattern:
        case Range() | Choice() if pattern.low < pattern.high:
            yield path, pattern
    match pattern:
        case Choice(options=items) | [*items]:
            for number, item in enumerate(items):
                yield from parameters_of(item, f"{path}[{number}]")
        case dict():
            for name, item in pattern.items():
                yield from parameters_of(item, f"{path}.{name}")


def label(name: str) -> str:
    """The prefix for places inside a hyper-parameter's entry; quoted if the name itself looks like such a place."""
    return f"[{name!r}]" if set(name) & set(".[") else name


def random_parts(pattern: Any) -> Iterator[str]:
    """The names of the distributions that cannot be listed."""
    match pattern:
        case Choice(options=options):
            yield from chain.from_iterable(map(random_parts, options))
        case Range():
            yield pattern.name
        case dict():
            yield from chain.from_iterable(map(random_parts, pattern.values()))
        case list():
            yield from chain.from_iterable(map(random_parts, pattern))


def is_random(unfolded: Any) -> bool:
    return any(True for _ in random_parts(unfolded))


# ------------------------------------------------------------------ back from JSON to the values that it was made of

Values = dict[str, Any]
"""The value of each distribution, by the place that `fill` names."""


def values_of(pattern: Any, path: str, value: Any, steps: int | None = None) -> Values | None:
    """The values with which a pattern becomes `value`; None if it cannot.

    steps: the trial's length, for fractions in the pattern. Constants must match in type: 1, 1.0 and true are three
    options. If nothing matches, 1 is accepted for 1.0, since people write either.
    """
    exact = _Fitting(steps, is_same_value).values(pattern, path, value)
    return _Fitting(steps, is_equal_value).values(pattern, path, value) if exact is None else exact


@dataclass(frozen=True, slots=True)
class _Fitting:
    steps: int | None
    """The trial's length, for fractions."""
    fits: Callable[[Any, Any], bool]
    """Compares a constant of the pattern, or a number of a range, with the value."""

    def values(self, pattern: Any, path: str, value: Any) -> Values | None:
        if is_mix(pattern) and isinstance(pattern["mix"], Mapping):
            weights = weights_of(pattern["mix"], value)
            return None if weights is None else values_of(pattern["mix"], f"{path}.mix", weights)
        value = bare(pattern, value)
        match pattern:
            case Choice(options=options):
                inside = [self.values(option, f"{path}[{number}]", value) for number, option in enumerate(options)]
                return _choice_values(pattern, inside, path)
            case Range():
                return self._range_values(pattern, value, path)
            case dict():
                if not isinstance(value, Mapping) or not pattern.keys() <= value.keys():
                    return None
                items = pattern.items()
                return _merge([self._inside(item, f"{path}.{name}", value[name], value) for name, item in items])
            case list():
                if not isinstance(value, list) or len(value) != len(pattern):
                    return None
                pairs = enumerate(zip(pattern, value, strict=True))
                return _merge([self._inside(item, f"{path}[{number}]", old, {}) for number, (item, old) in pairs])
        return {} if self.fits(pattern, value) else None

    def _inside(self, item: Any, path: str, value: Any, owner: Mapping[str, Any]) -> Values | None:
        """The values for a field of `owner`, or for an item of a list."""
        if not is_fraction(item):
            return self.values(item, path, value)
        of = item.get("of")
        whole = of if isinstance(of, int) else self.steps if of is None else owner.get(of)
        return None if not whole else self._ratio(item.get("ratio", 1), f"{path}.ratio", value, whole)

    def _ratio(self, pattern: Any, path: str, value: Any, whole: float) -> Values | None:
        """The values with which a fraction of `whole` is `value`. Of all ratios that round to it, the middle one."""
        if isinstance(pattern, Choice):
            inside = [self._ratio(option, f"{path}[{n}]", value, whole) for n, option in enumerate(pattern.options)]
            return _choice_values(pattern, inside, path)
        is_drawn = isinstance(pattern, Range)
        ratio = pattern.near(value / whole) if is_drawn else pattern
        if math.floor(ratio * whole + 0.5) != value:
            return None
        return self._range_values(pattern, ratio, path) if is_drawn else {}

    def _range_values(self, distribution: Range, value: Any, path: str) -> Values | None:
        if not distribution.holds(value) or not self.fits(number := distribution.near(value), value):
            return None
        return {path: number} if distribution.low < distribution.high else {}


def _choice_values(choice: Choice, inside: list[Values | None], path: str) -> Values | None:
    """The number of the first matching option, and the values inside it."""
    for number, values in enumerate(inside):
        if values is not None:
            return ({path: number} if choice.low < choice.high else {}) | values
    return None


def _merge(parts: list[Values | None]) -> Values | None:
    joined: Values = {}
    for part in parts:
        if part is None:
            return None
        joined |= part
    return joined


def bare(pattern: Any, value: Any) -> Any:
    """A constant as its bare value, unless the pattern spells out the family."""
    is_constant = isinstance(value, Mapping) and value.get("family") == "constant"
    return value["value"] if is_constant and not isinstance(pattern, dict | Choice) else value
