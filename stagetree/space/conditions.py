"""Conditional hyper-parameters: they exist only if others have certain values.

    momentum:
      value: {uniform: [0.8, 0.99]}
      when: {optimizer: [sgd, nesterov]}

>>> when({"optimizer": "sgd"}, 0.9)
{'value': 0.9, 'when': {'optimizer': 'sgd'}}

A configuration has a hyper-parameter with a `when` only if each name in the `when` exists and has one of the listed
values. Samplers, grids and trainers therefore never see a value without effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from stagetree.sequences import Constant, Sequence, SequenceError, did_you_mean, equality_key, parse
from stagetree.space.distributions import SpaceError, plain


def when(condition: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """An entry for a conditional hyper-parameter: it exists only if others have one of the given values."""
    return {"value": value, "when": dict(condition)}


@dataclass(frozen=True, slots=True)
class Condition:
    """The values that other hyper-parameters must have."""

    wanted: Mapping[str, tuple[Sequence, ...]]
    """By name, the sequences of which the hyper-parameter must have one."""
    listed: frozenset[str] = frozenset()
    """Names whose wanted values are written as in the space. For the others, 1 also matches 1.0 from a range."""
    _keys: Mapping[str, frozenset[Hashable]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        keys = {name: frozenset(self._key(name, each) for each in values) for name, values in self.wanted.items()}
        object.__setattr__(self, "_keys", keys)

    def holds(self, configuration: Mapping[str, Sequence]) -> bool:
        """Whether the condition is satisfied, as far as the configuration is chosen."""
        return all(
            name in configuration and self._key(name, configuration[name]) in self._keys[name] for name in self.wanted
        )

    def _key(self, name: str, value: Sequence) -> Hashable:
        return value if name in self.listed else _equality_key(value)

    def resolve(self, values: Mapping[str, ListedValues | None], owner: str) -> Condition:
        """The condition with the values as the space writes them, for hyper-parameters with listed values.

        1 means 1 if the space has it, otherwise 1.0. Raises `SpaceError` for values that are not in the space.
        """
        known = {name: options for name in self.wanted if (options := values[name]) is not None}
        wanted = {name: known[name].find_all(self.wanted[name], f"{owner}.when.{name}") for name in known}
        return Condition({**self.wanted, **wanted}, frozenset(known))


def split(entry: Any, path: str) -> tuple[Any, Condition | None]:
    """Split a `when` off an entry. Raises `SpaceError`."""
    if not isinstance(entry, Mapping) or "when" not in entry or "family" in entry:
        return entry, None
    if entry.keys() != {"value", "when"}:
        raise SpaceError(path, f"must have value and when, and no others, got {', '.join(map(str, entry))}")
    when = entry["when"]
    if not isinstance(when, Mapping) or not when:
        raise SpaceError(f"{path}.when", f"must map other hyper-parameters to their values, got {when!r}")
    return entry["value"], Condition({name: _values(value, f"{path}.when.{name}") for name, value in when.items()})


def _values(written: Any, path: str) -> tuple[Sequence, ...]:
    written = plain(written)
    listed = written if isinstance(written, list) else [written]
    try:
        return tuple(parse(value, path) for value in listed)
    except SequenceError as error:
        raise SpaceError(error.field, error.problem) from None


def dependency_order(conditions: Mapping[str, Condition | None]) -> list[str]:
    """The names as written, but each conditional one after the names it depends on. Raises `SpaceError`."""
    if not any(conditions.values()):
        return list(conditions)
    for name, condition in conditions.items():
        for other in condition.wanted if condition else ():
            if other not in conditions or other == name:
                others = [each for each in conditions if each != name]
                problem = f"must be one of {', '.join(others) or 'no others'}{did_you_mean(other, others)}"
                raise SpaceError(f"{name}.when.{other}", problem)
    before = {name: list(condition.wanted) if condition else [] for name, condition in conditions.items()}
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        cycle = sorted(set(error.args[1]))
        raise SpaceError(f"{cycle[0]}.when", f"must not depend on itself, through {', '.join(cycle)}") from None


class ListedValues:
    """All values of a hyper-parameter, in an index: a condition may list thousands of thousands."""

    def __init__(self, values: list[Sequence]) -> None:
        self._values, self._exact = values, frozenset(values)
        self._equal = defaultdict[Hashable, list[Sequence]](list)
        for value in values:
            self._equal[_equality_key(value)].append(value)

    def find_all(self, wanted: Iterable[Sequence], path: str) -> tuple[Sequence, ...]:
        """The wanted values as they are listed. Raises `SpaceError` if there is one that is not."""
        found: list[Sequence] = []
        for each in wanted:
            same = [each] if each in self._exact else self._equal.get(_equality_key(each), [])
            if not same:
                got, texts = _text(each), list(map(_text, self._values))
                raise SpaceError(path, f"must be one of {', '.join(texts)}, got {got}{did_you_mean(got, texts)}")
            found += same
        return tuple(found)


def _equality_key(sequence: Sequence) -> Hashable:
    return equality_key(sequence.to_json())


def _text(sequence: Sequence) -> str:
    return str(sequence.value) if isinstance(sequence, Constant) else str(sequence)
