"""Spaces: which configurations a study may try.

A space maps each hyper-parameter to a scalar, a sequence, a distribution, a family object with distributions in any of
its fields, or a list of such entries to choose from. Some may exist only if others have certain values: see
`stagetree.conditions`.

>>> decays = {"family": "exponential", "init": {"choice": [0.1, 0.2]}, "gamma": 0.9}
>>> space = Space({"lr": [decays, 0.1], "bs": [64, 128]})
>>> space.size()
6
>>> {name: sequence.at(0) for name, sequence in next(space.grid()).items()}
{'lr': 0.1, 'bs': 64}
>>> lr = Space({"lr": {"loguniform": [1e-4, 1e-1]}}).sample(seed=0, number=7)["lr"]
>>> 1e-4 <= lr.at(0) <= 1e-1
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice, product
from random import Random
from typing import Any

from stagetree.conditions import in_order, split
from stagetree.distributions import (
    READERS,
    Choice,
    Distribution,
    LogUniform,
    RandInt,
    SpaceError,
    Uniform,
    is_number,
    plain,
)
from stagetree.inverse import values_of
from stagetree.sequences import Constant, Sequence, SequenceError, did_you_mean, parse
from stagetree.where import Where, WhereError, compile_where

__all__ = [
    "DISTRIBUTIONS",
    "Choice",
    "Distribution",
    "LogUniform",
    "RandInt",
    "Space",
    "SpaceError",
    "Uniform",
    "drawing",
    "plain",
    "read_entry",
]

_ATTEMPTS = 1000
"""How often a draw is repeated before we say that the space, or its `where`, lets nothing through."""

_END = object()

_LISTED = 1_000_000
"""The most ways to choose inside one entry that a grid makes a list of."""

_CHECKED = 10_000
"""How many of the ways to choose inside one entry are looked at before a study starts."""


Choose = Callable[[str, Distribution], Any]
"""Gives the value of a distribution, named by its place in the space."""


def drawing(rng: Random) -> Choose:
    """Choose at random. Only `Random.random` is used: the one method whose numbers Python promises not to change."""
    return lambda path, distribution: distribution.at(rng.random())


def _read_choice(value: Any, path: str) -> Choice:
    if not isinstance(value, list | tuple) or not value:
        raise SpaceError(path, f"must be a list of at least one option, got {value!r}")
    return Choice(tuple(_read(option, f"{path}[{number}]") for number, option in enumerate(value)), path)


DISTRIBUTIONS: dict[str, Callable[[Any, str], Any]] = {**READERS, "choice": _read_choice}


# ------------------------------------------------------------------------------------------------------------ patterns
# A pattern is JSON in which a distribution may stand for a value. It is read once, then unfolded or drawn from.


def _read_entry(value: Any, path: str) -> Any:
    """The pattern of a hyper-parameter: at the top, and only there, a list is a choice."""
    return _read_choice(value, path) if isinstance(value, list | tuple) else _read(value, path)


def _read(value: Any, path: str) -> Any:
    if isinstance(value, list | tuple):
        return [_read(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        [(name, argument)] = value.items()
        if name in DISTRIBUTIONS:
            return DISTRIBUTIONS[name](argument, f"{path}.{name}")
        if hint := did_you_mean(name, DISTRIBUTIONS):
            raise SpaceError(path, f"must be a value or one of {', '.join(DISTRIBUTIONS)}, got {name!r}{hint}")
    return {name: _read(item, f"{path}.{name}") for name, item in value.items()}


def _unfold(pattern: Any) -> Iterator[Any]:
    """Every way to choose inside a pattern, what is written last varying fastest. Other distributions stay."""
    match pattern:
        case Choice(options=options):
            yield from chain.from_iterable(map(_unfold, options))
        case dict():
            for items in _crossed(list(pattern.values())):
                yield dict(zip(pattern, items, strict=True))
        case list():
            yield from _crossed(pattern)
        case _:
            yield pattern


def _crossed(patterns: list[Any]) -> Iterator[list[Any]]:
    """Every way to choose in all of them, made one by one: there may be more than could be kept."""
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


def _count(pattern: Any) -> int:
    """How many ways `_unfold` gives."""
    match pattern:
        case Choice(options=options):
            return sum(map(_count, options))
        case dict():
            return math.prod(map(_count, pattern.values()))
        case list():
            return math.prod(map(_count, pattern))
        case _:
            return 1


def _unfold_entry(pattern: Any, path: str) -> Iterator[tuple[str, Any]]:
    """As `_unfold`, each with the path of the option it comes from."""
    if isinstance(pattern, Choice):
        for number, option in enumerate(pattern.options):
            yield from _unfold_entry(option, f"{pattern.path}[{number}]")
    else:
        for unfolded in _unfold(pattern):
            yield path, unfolded


def _fill(pattern: Any, path: str, choose: Choose) -> Any:
    """The pattern with a value for each distribution, chosen in the order written."""
    match pattern:
        case Choice():
            number = choose(path, pattern)
            return _fill(pattern.options[number], f"{path}[{number}]", choose)
        case Uniform() | LogUniform() | RandInt():
            return choose(path, pattern)
        case dict():
            return {name: _fill(item, f"{path}.{name}", choose) for name, item in pattern.items()}
        case list():
            return [_fill(item, f"{path}[{number}]", choose) for number, item in enumerate(pattern)]
        case _:
            return pattern


def _parameters(pattern: Any, path: str) -> Iterator[tuple[str, Distribution]]:
    """The distributions of a pattern that leave a choice, by the names that `_fill` gives them."""
    match pattern:
        case Uniform() | LogUniform() | RandInt() | Choice() if pattern.low < pattern.high:
            yield path, pattern
    match pattern:
        case Choice(options=items) | [*items]:
            for number, item in enumerate(items):
                yield from _parameters(item, f"{path}[{number}]")
        case dict():
            for name, item in pattern.items():
                yield from _parameters(item, f"{path}.{name}")


def _holds(distribution: Distribution, value: Any) -> bool:
    kind = int if isinstance(distribution, RandInt | Choice) else int | float
    return isinstance(value, kind) and is_number(value) and bool(distribution.low <= value <= distribution.high)


def _label(name: str) -> str:
    """How the places inside a hyper-parameter's entry begin: quoted, where the name could be taken for such a place."""
    return f"[{name!r}]" if set(name) & set(".[") else name


def _random_parts(pattern: Any) -> Iterator[str]:
    """The names of the distributions in a pattern that have no list of values."""
    match pattern:
        case Choice(options=options):
            yield from chain.from_iterable(map(_random_parts, options))
        case Uniform() | LogUniform() | RandInt():
            yield type(pattern).__name__.lower()
        case dict():
            yield from chain.from_iterable(map(_random_parts, pattern.values()))
        case list():
            yield from chain.from_iterable(map(_random_parts, pattern))


# --------------------------------------------------------------------------------------------------------------- space


class Space:
    """The configurations that `entries` describe and `where` lets through.

    `where` is an expression (see `stagetree.where`) or a function of the configuration, a dict of sequences.
    Raises `SpaceError` for what can be seen before any configuration is made, wrong sequences included.
    """

    def __init__(self, entries: Mapping[str, Any], where: str | Where | None = None) -> None:
        if not isinstance(entries, Mapping) or not entries:
            raise SpaceError("", f"must map at least one hyper-parameter to its values, got {entries!r}")
        if not all(isinstance(name, str) and name for name in entries):
            raise SpaceError("", f"must name its hyper-parameters by strings, got {list(entries)!r}")
        self._json = {name: plain(entry) for name, entry in entries.items()}
        self._conditions = {name: split(entry, name)[1] for name, entry in self._json.items()}
        self._patterns = {name: read_entry(self._json[name], name) for name in in_order(self._conditions)}
        self._check_conditions()
        self._is_filtered = where is not None
        self._where = _read_where(where, list(entries))

    @classmethod
    def parse(cls, json: Mapping[str, Any], where: str | Where | None = None) -> Space:
        """The space that JSON writes."""
        return cls(json, where)

    def to_json(self) -> dict[str, Any]:
        """The JSON of the entries, which `parse` reads back."""
        return dict(self._json)

    def grid(self) -> Iterator[dict[str, Sequence]]:
        """Every configuration that `where` lets through, in the order written; the last name varies fastest.

        Lists and `choice` are crossed, at any depth. Raises `SpaceError` for other distributions.
        """
        options = {name: _grid_options(name, pattern) for name, pattern in self._patterns.items()}
        for configuration in self._combined(options):
            if self._where(configuration):
                yield configuration

    def _combined(self, options: Mapping[str, list[Sequence]]) -> Iterator[dict[str, Sequence]]:
        """Every combination of the options of those that exist in it."""
        if self.is_conditional:
            return self._extended({}, list(options), options)
        return (dict(zip(options, chosen, strict=True)) for chosen in product(*options.values()))

    def _extended(
        self, chosen: dict[str, Sequence], names: list[str], options: Mapping[str, list[Sequence]]
    ) -> Iterator[dict[str, Sequence]]:
        """Every way to go on from what is chosen, through the rest of the names, one by one."""
        if not names:
            yield chosen
        elif self.exists(names[0], chosen):
            for option in options[names[0]]:
                yield from self._extended({**chosen, names[0]: option}, names[1:], options)
        else:
            yield from self._extended(chosen, names[1:], options)

    @property
    def is_conditional(self) -> bool:
        """Whether some hyper-parameters exist only if others have certain values."""
        return any(self._conditions.values())

    def exists(self, name: str, configuration: Mapping[str, Sequence]) -> bool:
        """Whether a hyper-parameter belongs into a configuration, by what is chosen of it."""
        condition = self._conditions[name]
        return condition is None or condition.holds(configuration)

    def parents(self) -> set[str]:
        """The hyper-parameters on which the existence of others depends."""
        return {name for condition in self._conditions.values() if condition for name in condition.wanted}

    def sample(self, seed: int, number: int) -> dict[str, Sequence]:
        """Configuration `number` of `seed`: always the same, and independent of all other numbers.

        Attempt k = 0, 1, ... draws each hyper-parameter from `random.Random(f"{seed}/{number}/{k}/{name}")`; the first
        attempt that is a valid sequence for every name, and that `where` lets through, is the answer. So one more
        hyper-parameter changes no draw of the others.
        """
        problem = "where lets none of them through"
        for attempt in range(_ATTEMPTS):
            try:
                configuration = self._attempt(f"{seed}/{number}/{attempt}")
            except WhereError:
                raise
            except SequenceError as error:
                problem = str(error)
            else:
                if self._where(configuration):
                    return configuration
        raise SpaceError("", f"must hold configurations that can be found: {_ATTEMPTS} were drawn, and {problem}")

    def size(self) -> int | None:
        """How many configurations the grid has, after `where`; None when it is endless, with a distribution in it."""
        if any(map(_is_random, self._patterns.values())):
            return None
        return sum(1 for _ in self.grid()) if self._is_filtered or self.is_conditional else self.combinations()

    def combinations(self) -> int:
        """How many ways there are to choose among lists and `choice`, before `where`. Counted, not made."""
        return math.prod(map(_count, self._patterns.values()))

    def examples(self, name: str) -> Iterator[Sequence]:
        """For each way to choose inside the entry of a hyper-parameter, one by one, a sequence that it can become."""
        for place, pattern in _unfold_entry(self._patterns[name], name):
            with suppress(SequenceError):  # a draw that is none; others are
                yield parse(_fill(pattern, place, drawing(Random(place))), name)

    def parameters(self) -> dict[str, Distribution]:
        """What is free in the space, by name: each distribution that leaves a choice, wherever it stands.

        The name is its place, such as `lr`, `lr.gamma`, or `lr[1].gamma` inside option 1 of `lr`. The value of a
        `Choice` is the number of an option; what is free inside the other options has no say then.
        """
        return {place: free for name, p in self._patterns.items() for place, free in _parameters(p, _label(name))}

    def build(self, values: Mapping[str, Any]) -> dict[str, Sequence]:
        """The configuration with these values of `parameters`; those that have no say may be missing.

        `where` is not asked: see `allows`. Raises `SequenceError` where the values make no sequence.
        """

        def choose(place: str, distribution: Distribution) -> Any:
            value = values.get(place, distribution.low if distribution.low == distribution.high else None)
            if not _holds(distribution, value):
                raise SpaceError(place, f"must be from {distribution.low} to {distribution.high}, got {value!r}")
            return value

        return self.compose(choose)

    def values(self, configuration: Mapping[str, Sequence]) -> dict[str, Any] | None:
        """The values of `parameters` that `build` makes the configuration of; None if they are not in the space."""
        names = [name for name in self._patterns if self.exists(name, configuration)]
        if set(names) != set(configuration):
            return None
        found: dict[str, Any] = {}
        for name in names:
            inside = values_of(self._patterns[name], _label(name), configuration[name].to_json())
            if inside is None:
                return None
            found |= inside
        return found

    def compose(self, choose: Choose) -> dict[str, Sequence]:
        """The configuration whose values `choose` gives, asked in the order written for those that have a say."""
        return self._filled(lambda name, pattern: _fill(pattern, _label(name), choose))

    def _filled(self, fill: Callable[[str, Any], Any]) -> dict[str, Sequence]:
        configuration: dict[str, Sequence] = {}
        for name, pattern in self._patterns.items():
            if self.exists(name, configuration):
                configuration[name] = parse(fill(name, pattern), name)
        return configuration

    def allows(self, configuration: Mapping[str, Sequence]) -> bool:
        """Whether `where` lets a configuration through."""
        return bool(self._where(dict(configuration)))

    def _attempt(self, key: str) -> dict[str, Sequence]:
        return self._filled(lambda name, pattern: _fill(pattern, name, drawing(Random(f"{key}/{name}"))))

    def _check_conditions(self) -> None:
        """Raises `SpaceError` for a value that a hyper-parameter can never have, where that can be seen."""
        for name, condition in self._conditions.items():
            for other, wanted in condition.wanted.items() if condition else ():
                known = [unfolded for _, unfolded in islice(_unfold_entry(self._patterns[other], other), _CHECKED)]
                if len(known) < _CHECKED and not any(map(_is_random, known)):
                    _check_wanted(wanted, [parse(each, other) for each in known], f"{name}.when.{other}")


def read_entry(entry: Any, path: str = "") -> Any:
    """The pattern of one hyper-parameter, after a look at every sequence it can become."""
    pattern = _read_entry(split(entry, path)[0], path)
    for place, unfolded in islice(_unfold_entry(pattern, path), _CHECKED):
        _check(unfolded, place)
    return pattern


def _check(unfolded: Any, path: str) -> None:
    """Raise if no draw from a pattern without choices is a sequence. Some that are not do no harm: they are redrawn."""
    rng = Random(path)
    for attempts_left in reversed(range(100 if _is_random(unfolded) else 1)):
        try:
            parse(_fill(unfolded, path, drawing(rng)), path)
        except SequenceError:
            if not attempts_left:
                raise
        else:
            return


def _is_random(unfolded: Any) -> bool:
    return any(True for _ in _random_parts(unfolded))


def _grid_options(name: str, pattern: Any) -> list[Sequence]:
    if (ways := _count(pattern)) > _LISTED:
        raise SpaceError(name, f"must have at most {_LISTED:,} ways to be chosen in a grid, got {ways:.1e}")
    return list(_grid_entry(name, pattern))


def _grid_entry(name: str, pattern: Any) -> Iterator[Sequence]:
    for path, unfolded in _unfold_entry(pattern, name):
        for kind in _random_parts(unfolded):
            raise SpaceError(path, f"must be listed for a grid: {kind} has no list of values, use choice or a list")
        yield parse(unfolded, path)


def _check_wanted(wanted: tuple[Sequence, ...], known: list[Sequence], path: str) -> None:
    for value in wanted:
        if value not in known:
            got, texts = _text(value), list(map(_text, known))
            raise SpaceError(path, f"must be one of {', '.join(texts)}, got {got}{did_you_mean(got, texts)}")


def _text(sequence: Sequence) -> str:
    return str(sequence.value) if isinstance(sequence, Constant) else str(sequence)


def _read_where(where: str | Where | None, names: list[str]) -> Where:
    if where is None:
        return lambda configuration: True
    if isinstance(where, str):
        return compile_where(where, names)
    if callable(where):
        return where
    raise WhereError(f"must be an expression in a string, or a function in Python, got {where!r}")
