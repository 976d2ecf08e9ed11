"""`Space`: its grid, its draws, and what is free in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, product
from random import Random
from typing import Any

from stagetree.sequences import Sequence, SequenceError, parse
from stagetree.space.conditions import CHECKED, check_wanted, grid_options, in_order, read_entry, split
from stagetree.space.distributions import Distribution, SpaceError, plain, values_of
from stagetree.space.patterns import (
    Choose,
    count,
    count_listed,
    drawing,
    fill,
    has_range,
    holds,
    is_random,
    label,
    listed,
    parameters_of,
    unfold_entry,
)
from stagetree.space.where import Where, WhereError, compile_where

_ATTEMPTS = 1000
"""How often a draw is repeated before we say that the space, or its `where`, lets nothing through."""


class Space:
    """The configurations that `entries` describe and `where` lets through.

    `where` is an expression (see `stagetree.space.where`) or a function of the configuration, a dict of sequences.
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
        self._where = read_where(where, list(entries))

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
        options = {name: grid_options(name, pattern) for name, pattern in self._patterns.items()}
        for configuration in self._combined(options):
            if self._where(configuration):
                yield configuration

    def is_empty(self, most: int) -> bool:
        """Whether `where` lets no combination of the grid through, as far as the first `most` of them show."""
        options = {name: grid_options(name, pattern) for name, pattern in self._patterns.items()}
        looked_at = 0
        for configuration in islice(self._combined(options), most):
            if self._where(configuration):
                return False
            looked_at += 1
        return looked_at < most

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
        if any(map(is_random, self._patterns.values())):
            return None
        return sum(1 for _ in self.grid()) if self._is_filtered or self.is_conditional else self.combinations()

    def ways(self) -> int | None:
        """How many ways there are to choose, whole numbers included, before `where`; None where a range is in it."""
        patterns = self._patterns.values()
        return None if any(map(has_range, patterns)) else math.prod(map(count_listed, patterns))

    def listed(self) -> Iterator[dict[str, Sequence]]:
        """Every configuration that can be drawn, if `ways` counts them: in the order written, some perhaps twice."""
        options = {name: list(_sequences(listed(pattern), name)) for name, pattern in self._patterns.items()}
        return filter(self.allows, self._combined(options))

    def combinations(self) -> int:
        """How many ways there are to choose among lists and `choice`, before `where`. Counted, not made."""
        return math.prod(map(count, self._patterns.values()))

    def examples(self, name: str) -> Iterator[Sequence]:
        """For each way to choose inside the entry of a hyper-parameter, one by one, a sequence that it can become."""
        for place, pattern in unfold_entry(self._patterns[name], name):
            with suppress(SequenceError):  # a draw that is none; others are
                yield parse(fill(pattern, place, drawing(Random(place))), name)

    def parameters(self) -> dict[str, Distribution]:
        """What is free in the space, by name: each distribution that leaves a choice, wherever it stands.

        The name is its place, such as `lr`, `lr.gamma`, or `lr[1].gamma` inside option 1 of `lr`. The value of a
        `Choice` is the number of an option; what is free inside the other options has no say then.
        """
        return {place: free for name, p in self._patterns.items() for place, free in parameters_of(p, label(name))}

    def build(self, values: Mapping[str, Any]) -> dict[str, Sequence]:
        """The configuration with these values of `parameters`; those that have no say may be missing.

        `where` is not asked: see `allows`. Raises `SequenceError` where the values make no sequence.
        """

        def choose(place: str, distribution: Distribution) -> Any:
            value = values.get(place, distribution.low if distribution.low == distribution.high else None)
            if not holds(distribution, value):
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
            inside = values_of(self._patterns[name], label(name), configuration[name].to_json())
            if inside is None:
                return None
            found |= inside
        return found

    def compose(self, choose: Choose) -> dict[str, Sequence]:
        """The configuration whose values `choose` gives, asked in the order written for those that have a say."""
        return self._filled(lambda name, pattern: fill(pattern, label(name), choose))

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
        return self._filled(lambda name, pattern: fill(pattern, name, drawing(Random(f"{key}/{name}"))))

    def _check_conditions(self) -> None:
        """Raises `SpaceError` for a value that a hyper-parameter can never have, where that can be seen."""
        for name, condition in self._conditions.items():
            for other, wanted in condition.wanted.items() if condition else ():
                known = [unfolded for _, unfolded in islice(unfold_entry(self._patterns[other], other), CHECKED)]
                if len(known) < CHECKED and not any(map(is_random, known)):
                    check_wanted(wanted, [parse(each, other) for each in known], f"{name}.when.{other}")


def _sequences(pattern: Any, name: str) -> Iterator[Sequence]:
    """What a pattern of choices alone can become; what is no sequence is never drawn either."""
    for place, unfolded in unfold_entry(pattern, name):
        with suppress(SequenceError):
            yield parse(unfolded, place)


def read_where(where: str | Where | None, names: list[str]) -> Where:
    if where is None:
        return lambda configuration: True
    if isinstance(where, str):
        return compile_where(where, names)
    if callable(where):
        return where
    raise WhereError(f"must be an expression in a string, or a function in Python, got {where!r}")
