"""Suggested configurations: users fix some or all values of a space, and the others are sampled.

>>> decaying = {"family": "exponential", "init": 1.0, "gamma": {"uniform": [0.9, 1]}}
>>> space = Space({"lr": [0.1, decaying], "bs": [64, 128]})
>>> resolved(space, {"lr[1].gamma": 0.95})
{'lr': 1, 'lr[1].gamma': 0.95}
>>> resolved(space, {"bs": 32})
Traceback (most recent call last):
...
stagetree.space.distributions.SpaceError: bs: must be one of 64, 128, as in the space, got 32
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from stagetree.sequences import Sequence, SequenceError, did_you_mean, is_same_value
from stagetree.space.distributions import Choice, Distribution, Range, SpaceError, plain
from stagetree.space.patterns import Choose, label, parameters_of, random_choices, values_of
from stagetree.space.space import Space

Values = dict[str, Any]


def suggested_values(space: Space, suggestion: Mapping[str, Any]) -> Values:
    """The values of `space.parameters` that a suggestion determines.

    A suggestion maps hyper-parameters to sequences or values, or the path of a free value, such as `lr.gamma`, to a
    value. A path inside an option of a choice also selects that option. Raises `SpaceError` for values outside the
    space.
    """
    if not isinstance(suggestion, Mapping) or not suggestion:
        raise SpaceError("", f"must map at least one hyper-parameter to its value, got {suggestion!r}")
    free, values = space.parameters(), Values()
    known = {name: space.read(name, plain(written)) for name, written in suggestion.items() if name in space.patterns}
    for name, written in suggestion.items():
        for place, value in {**_options_above(name, free), **_values(space, free, known, name, written)}.items():
            if not is_same_value(values.setdefault(place, value), value):
                raise SpaceError(
                    name, f"must go with the rest of the suggestion, which chooses another option of {place}"
                )
    return values


def _values(
    space: Space, free: Mapping[str, Distribution], known: Mapping[str, Sequence], name: str, written: Any
) -> Values:
    """The values that one entry of a suggestion determines. known: the sequences that the suggestion names."""
    if name in known:
        pattern, path, value = space.bound_pattern(name, known), label(name), known[name].to_json()
    elif name in free:
        pattern, path, value = free[name], name, plain(written)
    else:
        names = [*space.patterns, *(place for place in free if place not in space.patterns)]
        raise SpaceError(name, f"must be one of {', '.join(names)}{did_you_mean(name, names)}")
    steps = space.length_of({})
    if (values := values_of(pattern, path, value, steps)) is None:
        raise SpaceError(name, f"must be {_expected(pattern, path)}, as in the space, got {json.dumps(plain(written))}")
    return values


def _options_above(name: str, free: Mapping[str, Distribution]) -> Values:
    """The options around a place: by the place of each choice, the number of the option."""
    choices = ((place, each) for place, each in free.items() if isinstance(each, Choice))
    return {
        place: number
        for place, choice in choices
        for number in range(len(choice.options))
        if name.startswith(f"{place}[{number}]")
    }


def _expected(pattern: Any, path: str) -> str:
    """A description of the values that the space allows."""
    match pattern:
        case Range():
            kind = "a whole number" if pattern.is_whole else "a number"
            by = "" if pattern.step in (None, 1) else f", in steps of {pattern.step:g}"
            return f"{kind} from {pattern.low:g} to {pattern.high:g}{by}"
        case Choice(options=options) if not any(isinstance(each, dict | list | Range | Choice) for each in options):
            return f"one of {', '.join(map(_shorten, options))}"
    places = [place for place, _ in parameters_of(pattern, path) if place != path]
    if places:
        return f"a sequence that can be drawn (or say {', '.join(places)})"
    return _shorten(pattern) if not isinstance(pattern, Choice) else "one of its entries"


def _shorten(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


BuiltConfiguration = tuple[Values, dict[str, Sequence]]
"""A configuration with the values it was built from."""


def build_suggestion(space: Space, choose: Choose, fixed: Mapping[str, Any] | None) -> BuiltConfiguration | None:
    """Build the configuration with the `fixed` values; `choose` gives the other values.

    None if a sequence is invalid, if `where` rejects it, or if a fixed value has no effect in it.
    """
    sample: Values = {}
    fixed = fixed or {}

    def kept(place: str, free: Distribution) -> Any:
        if free.low == free.high:
            return free.low
        sample[place] = fixed[place] if place in fixed else choose(place, free)
        return sample[place]

    try:
        configuration = space.compose(kept)
    except SequenceError:
        return None
    return (sample, configuration) if fixed.keys() <= sample.keys() and space.allows(configuration) else None


def whole_suggestion(space: Space, fixed: Mapping[str, Any]) -> BuiltConfiguration | None:
    """The configuration with the `fixed` values, if they leave no value open; None otherwise."""
    lowest = build_suggestion(space, lambda place, free: free.low, fixed)
    return lowest if lowest is not None and lowest[0] == fixed else None


DRAWS = 1000
"""How many samples of the other values are tried before giving up."""


def sample_suggestion(space: Space, key: str, fixed: Mapping[str, Any] | None = None) -> Iterator[BuiltConfiguration]:
    """Sample the other values up to `DRAWS` times, seeded by `key`, and yield the valid configurations."""
    draws = (random_choices(Random(f"{key}/{attempt}")) for attempt in range(DRAWS))
    return (configuration for draw in draws if (configuration := build_suggestion(space, draw, fixed)) is not None)
