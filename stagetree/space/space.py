"""`Space`: a grid to enumerate, configurations to sample, and the free parameters that samplers model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, product
from random import Random
from typing import Any

from stagetree.sequences import Sequence, SequenceError, parse_for_length
from stagetree.space.conditions import ListedValues, dependency_order, split
from stagetree.space.distributions import Choice, Distribution, SpaceError, plain
from stagetree.space.effort import spend
from stagetree.space.entries import grid_options, listed_values, read_entry, reader_of
from stagetree.space.lengths import LENGTH, Lengths, read_lengths
from stagetree.space.notation import canonical
from stagetree.space.patterns import (
    Choose,
    count,
    count_with_integers,
    fill,
    has_range,
    is_random,
    label,
    list_integers,
    parameters_of,
    random_choices,
    unfold_entry,
    values_of,
    weight,
)
from stagetree.space.references import bind, bind_pattern, check_references, read_references
from stagetree.space.where import Where, WhereError, read_where

_ATTEMPTS = 1000
"""How often a sample is repeated before the space, or its `where`, counts as empty."""

_EXAMPLES = 16
"""How many samples stand for an entry that follows from others."""

CHECKED_WHERE = 10_000
"""On how many configurations `where` is tried before a study starts."""

OptionsOf = Callable[[str, Any, int | None], list[Any]]
"""The values of an entry, given its name, its pattern and the length of trials."""

MAX_TESTED = 200_000
"""How many combinations `where` is tested on. Without the limit, a grid of 10^20 would keep the server busy."""


class Space:
    """The configurations that `entries` describe and `where` accepts.

    `where` is an expression (see `stagetree.space.where`) or a function of the configuration, a dict of sequences.
    `steps` is the length of every trial, which fractions refer to; None if unknown. With `has_lengths`, the entry
    `max_steps` sets the length of each trial and is part of the configuration: see `stagetree.space.lengths`.

    Raises `SpaceError` for all errors that do not depend on a configuration, invalid sequences included.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        where: str | Where | None = None,
        steps: int | None = None,
        *,
        has_lengths: bool = False,
    ) -> None:
        if not isinstance(entries, Mapping) or not entries:
            raise SpaceError("", f"must map at least one hyper-parameter to its values, got {entries!r}")
        if not all(isinstance(name, str) and name for name in entries):
            raise SpaceError("", f"must name its hyper-parameters by strings, got {list(entries)!r}")
        self._json = {name: canonical(plain(entry), name) for name, entry in entries.items()}
        check_names(self._json)
        self._lengths = read_lengths(self._json[LENGTH], entries) if has_lengths else Lengths(steps)
        self._conditions = {name: split(self._json[name], name)[1] for name in self._choice_order()}
        lengths = list(dict.fromkeys(self._lengths.checked_lengths(self._json.get(LENGTH))))
        self._references = read_references(self._json, {LENGTH} if self._lengths.is_chosen else ())
        self._patterns = {
            name: read_entry(self._json[name], name, self._checked_lengths(name, lengths))
            for name in dependency_order(self._conditions)
        }
        self._readers = {name: reader_of(pattern) for name, pattern in self._patterns.items()}
        for name in sorted(self.parents() & self._references.keys()):
            raise SpaceError(name, "must not follow from another hyper-parameter, since a `when` names it")
        for name, steps in product(self._references, lengths):
            check_references(name, self._references, self._patterns, steps)
        self._weight = sum(map(weight, self._patterns.values()))
        listed = {name: listed_values(name, self._patterns[name]) for name in self.parents()}
        values = {name: None if options is None else ListedValues(options) for name, options in listed.items()}
        self._conditions = {
            name: condition and condition.resolve(values, name) for name, condition in self._conditions.items()
        }
        self._is_filtered, self._is_expression = where is not None, isinstance(where, str)
        self._where = read_where(where, list(entries))

    def _choice_order(self) -> list[str]:
        """The names in the order of choice. The length comes first, because fractions depend on it."""
        names = list(self._json)
        if self._lengths.is_chosen:
            names = ([] if self._lengths.end else [LENGTH]) + [name for name in names if name != LENGTH]
        return names

    def _checked_lengths(self, name: str, lengths: list[int | None]) -> list[int | None]:
        """The lengths for which an entry is checked by itself."""
        if name in self._references:
            return []
        return [None] if self._lengths.sets(name) else lengths

    @classmethod
    def parse(cls, json: Mapping[str, Any], where: str | Where | None = None) -> Space:
        return cls(json, where)

    def to_json(self) -> dict[str, Any]:
        """The JSON of the entries, which `parse` reads back."""
        return dict(self._json)

    def grid(self) -> Iterator[dict[str, Sequence]]:
        """Every configuration that `where` accepts, in the order written; the last name varies fastest.

        Lists and `choice` are crossed at any depth. Raises `SpaceError` for other distributions.
        """
        return (configuration for configuration in self._product(grid_options) if self._where(configuration))

    def is_empty(self) -> bool:
        """Whether `where` rejects every combination of the grid, as far as the tested ones show."""
        looked_at = 0
        for configuration in islice(self._product(grid_options), MAX_TESTED):
            if self._where(configuration):
                return False
            looked_at += 1
        return looked_at < MAX_TESTED

    def _product(self, options_of: OptionsOf, *, skips_invalid: bool = False) -> Iterator[dict[str, Sequence]]:
        """Every combination of `options_of(name, pattern, steps)` of the hyper-parameters.

        skips_invalid: leave out combinations in which a reference gives no valid sequence, instead of raising.
        """
        for configuration in self._length_options(options_of):
            steps = self._lengths.length_of(configuration)
            options = {
                name: [configuration[name]] if name in configuration else options_of(name, pattern, steps)
                for name, pattern in self._patterns.items()
            }
            skipped = (SequenceError,) if skips_invalid and self._references else ()
            for combination in self._combine(options):
                with suppress(*skipped):
                    yield self._complete(combination)

    def _complete(self, configuration: dict[str, Any]) -> dict[str, Sequence]:
        """The configuration with its references replaced, and with its length. Raises `SequenceError`."""
        if self._references:
            configuration = bind(configuration, self._lengths.length_of(configuration))
        return self._lengths.add_length(configuration)

    def _length_options(self, options_of: OptionsOf) -> Iterator[dict[str, Sequence]]:
        """The possible lengths, which are chosen first; an empty configuration if lengths are not chosen."""
        if self._lengths.is_chosen and LENGTH in self._patterns:
            yield from ({LENGTH: each} for each in options_of(LENGTH, self._patterns[LENGTH], None))
        else:
            yield {}

    def length_of(self, configuration: Mapping[str, Sequence]) -> int | None:
        """The length of the configuration's trial; None if the space does not set it."""
        return self._lengths.length_of(configuration)

    def drop_length(self, configuration: Mapping[str, Sequence]) -> dict[str, Sequence]:
        """The hyper-parameters without the length, as a trial has them."""
        return {name: sequence for name, sequence in configuration.items() if name in self.hyper_parameters}

    @property
    def lengths(self) -> list[int]:
        """The known lengths of trials: the bounds of a range, or all values of a list."""
        return [steps for steps in self._lengths.checked_lengths(self._json.get(LENGTH)) if steps]

    @property
    def hyper_parameters(self) -> list[str]:
        """The names that the trainer receives."""
        return [name for name in self._json if name != LENGTH or not self._lengths.is_chosen]

    @property
    def patterns(self) -> Mapping[str, Any]:
        """The entries as parsed: see `stagetree.space.patterns`."""
        return self._patterns

    def read(self, name: str, written: Any) -> Sequence:
        """Parse the sequence of a hyper-parameter in a trial of the space's length. Raises `SequenceError`."""
        return parse_for_length(written, self._lengths.length_of({}), name)  # type: ignore[no-any-return]

    def names(self, configuration: Mapping[str, Sequence]) -> list[str]:
        """The names that exist in a configuration, given its values."""
        return [name for name in self._patterns if self.exists(name, configuration)]

    def _combine(self, options: Mapping[str, list[Sequence]]) -> Iterator[dict[str, Sequence]]:
        """Every combination of the options of the names that exist in it."""
        if self.is_conditional:
            yield from self._extend({}, list(options), options)
        else:
            for chosen in product(*options.values()):
                spend(len(chosen))
                yield dict(zip(options, chosen, strict=True))

    def _extend(
        self, chosen: dict[str, Sequence], names: list[str], options: Mapping[str, list[Sequence]]
    ) -> Iterator[dict[str, Sequence]]:
        """Every completion of a partial configuration by the remaining names."""
        spend(len(chosen))
        if not names:
            yield chosen
        elif self.exists(names[0], chosen):
            for option in options[names[0]]:
                yield from self._extend({**chosen, names[0]: option}, names[1:], options)
        else:
            yield from self._extend(chosen, names[1:], options)

    @property
    def is_conditional(self) -> bool:
        """Whether the space has conditional hyper-parameters."""
        return any(self._conditions.values())

    def exists(self, name: str, configuration: Mapping[str, Sequence]) -> bool:
        """Whether a hyper-parameter exists in a configuration, given the values that are already chosen."""
        condition = self._conditions[name]
        return condition is None or condition.holds(configuration)

    @property
    def references(self) -> Mapping[str, set[str]]:
        """By hyper-parameter whose steps follow from others, the names of these."""
        return self._references

    def parents(self) -> set[str]:
        """The hyper-parameters that conditions refer to."""
        return {name for condition in self._conditions.values() if condition for name in condition.wanted}

    def sample(self, seed: int, number: int) -> dict[str, Sequence]:
        """Configuration `number` of `seed`: reproducible, and independent of all other numbers.

        Attempt k = 0, 1, ... samples each hyper-parameter from `random.Random(f"{seed}/{number}/{k}/{name}")`. The
        first attempt with valid sequences that `where` accepts is the answer. So adding a hyper-parameter does not
        change the samples of the others.
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
        raise SpaceError("", f"must contain valid configurations: {_ATTEMPTS} were sampled, and {problem}")

    def size(self) -> int | None:
        """The size of the grid after `where`; None if a distribution makes it infinite."""
        if any(map(is_random, self._patterns.values())):
            return None
        return sum(1 for _ in self.grid()) if self._is_filtered or self.is_conditional else self.combinations()

    def ways(self) -> int | None:
        """The number of ways to choose, with whole-number ranges, before `where`; None if there is another range."""
        patterns = self._patterns.values()
        return None if any(map(has_range, patterns)) else math.prod(map(count_with_integers, patterns))

    def list_configurations(self) -> Iterator[dict[str, Sequence]]:
        """Every configuration that can be sampled, in the order written, possibly with repetitions. Requires `ways`."""
        return filter(self.allows, self._product(_sequences, skips_invalid=True))

    def combinations(self) -> int:
        """The number of combinations of lists and `choice`, before `where`. Counted without enumerating them."""
        return math.prod(map(count, self._patterns.values()))

    def examples(self, name: str) -> Iterator[tuple[Sequence, int | None]]:
        """For each way to choose inside an entry, an example sequence, and the trial's length if known.

        Of an entry that follows from others, some samples.
        """
        if name in self._references:
            some = (self.sample(0, number) for number in range(_EXAMPLES))
            yield from ((each[name], self._lengths.length_of(each)) for each in some if name in each)
            return
        for configuration in self._length_options(_sequences):
            for place, pattern in unfold_entry(self._patterns[name], name):
                spend(weight(pattern))
                with suppress(SequenceError):  # a draw that is none; others are
                    steps = self._lengths.length_of(configuration)
                    yield parse_for_length(fill(pattern, place, random_choices(Random(place))), steps, name), steps

    def parameters(self) -> dict[str, Distribution]:
        """The free parameters of the space: each distribution with more than one value, by its place.

        A place is for example `lr`, `lr.gamma`, or `lr[1].gamma` inside option 1 of `lr`. The value of a `Choice` is
        the number of an option; parameters inside the other options then have no effect.
        """
        return {place: free for name, p in self._patterns.items() for place, free in parameters_of(p, label(name))}

    def build(self, values: Mapping[str, Any]) -> dict[str, Sequence]:
        """The configuration with these values of `parameters`. Values without effect may be missing.

        Does not test `where`: see `allows`. Raises `SequenceError` if the values make an invalid sequence.
        """

        def choose(place: str, distribution: Distribution) -> Any:
            value = values.get(place, distribution.low if distribution.low == distribution.high else None)
            if not distribution.holds(value):
                raise SpaceError(place, f"must be from {distribution.low} to {distribution.high}, got {value!r}")
            return value if isinstance(distribution, Choice) else distribution.near(value)

        return self.compose(choose)

    def values(self, configuration: Mapping[str, Sequence]) -> dict[str, Any] | None:
        """The inverse of `build`: the values of `parameters`, or None if the configuration is not in the space."""
        names = self.names(configuration)
        if set(names) != set(configuration):
            return None
        values: dict[str, Any] = {}
        steps = self._lengths.length_of(configuration)
        for name in names:
            pattern = self.bound_pattern(name, configuration)
            inside = values_of(pattern, label(name), configuration[name].to_json(), steps)
            if inside is None:
                return None
            values |= inside
        return values

    def bound_pattern(self, name: str, configuration: Mapping[str, Sequence]) -> Any:
        """The pattern of an entry with references replaced by the steps of these sequences. Raises `SequenceError`."""
        pattern = self._patterns[name]
        return bind_pattern(pattern, name, configuration.get) if name in self._references else pattern

    def compose(self, choose: Choose) -> dict[str, Sequence]:
        """The configuration with values from `choose`, which is called in the order written."""
        return self._fill(lambda name, pattern: fill(pattern, label(name), choose))

    def _fill(self, fill: Callable[[str, Any], Any]) -> dict[str, Sequence]:
        spend(self._weight)
        configuration: dict[str, Any] = {}
        for name, pattern in self._patterns.items():
            if self.exists(name, configuration):
                read, steps = self._readers[name], self._lengths.length_of(configuration)
                configuration[name] = read(fill(name, pattern), steps, name)
        return self._complete(configuration)

    def check_where(self) -> None:
        """Raise `WhereError` if `where` cannot be computed for a configuration. Ranges are represented by one draw."""
        if self._is_expression:
            for configuration in islice(self._product(_drawn_options, skips_invalid=True), CHECKED_WHERE):
                self._where(configuration)

    def allows(self, configuration: Mapping[str, Sequence]) -> bool:
        """Whether `where` accepts a configuration."""
        return bool(self._where(dict(configuration)))

    def _attempt(self, key: str) -> dict[str, Sequence]:
        return self._fill(lambda name, pattern: fill(pattern, name, random_choices(Random(f"{key}/{name}"))))


def _drawn_options(name: str, pattern: Any, steps: int | None) -> list[Any]:
    """A value of each way to choose, with ranges drawn. Invalid ones are skipped, as in sampling."""
    options, read = [], reader_of(pattern)
    for place, unfolded in islice(unfold_entry(pattern, name), CHECKED_WHERE):
        spend(weight(unfolded))
        with suppress(SequenceError):
            options.append(read(fill(unfolded, place, random_choices(Random(place))), steps, place))
    return options


def _sequences(name: str, pattern: Any, steps: int | None) -> list[Any]:
    """Every valid value of a pattern without ranges. Invalid ones are skipped, as in sampling."""
    sequences, read = [], reader_of(pattern)
    for place, unfolded in unfold_entry(list_integers(pattern), name):
        spend(weight(unfolded))
        with suppress(SequenceError):
            sequences.append(read(unfolded, steps, place))
    return sequences


def check_names(entries: Mapping[str, Any]) -> None:
    """Raise `SpaceError` for a name such as `lr.init` beside an `lr` that has a field `init`.

    Data frames, samplers and expressions have the field under this name.
    """
    for name in entries:
        owner, dot, rest = name.partition(".")
        inside = rest.split(".")[0]
        if dot and owner in entries and inside in set(_fields(entries[owner])):
            other = name.replace(".", "_")
            raise SpaceError(name, f"is the name of a field of {owner}: choose another, such as {other}")


def _fields(entry: Any) -> Iterator[str]:
    """The fields of all sequences in an entry."""
    if isinstance(entry, Mapping):
        if "family" in entry:
            yield from (name for name in entry if name != "family")
        for inside in entry.values():
            yield from _fields(inside)
    elif isinstance(entry, list):
        for inside in entry:
            yield from _fields(inside)
