"""Dicts of hyper-parameters that record which names are read."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stagetree.sequences import is_same_value


class NamedValues(dict[str, Any]):
    """Hyper-parameters. A name that is missing is answered with the names that are there."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__(hp)
        if (yaml := sys.modules.get("yaml")) is not None:  # it only dumps classes that it knows
            for dumper in (yaml.SafeDumper, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
                dumper.add_representer(type(self), dumper.represent_dict)

    def __missing__(self, name: str) -> Any:
        given = ", ".join(dict.keys(self)) or "no hyper-parameters"
        raise KeyError(f"the trainer reads {name}, and is given {given}")


class RecordedValues(NamedValues):
    """Hyper-parameters that record which of them were read."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__(hp)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def fits(self, hp: Mapping[str, Any]) -> bool:
        """Whether a model built from these values is the same as one built from `hp`."""
        return all(is_same_value(hp.get(name), super(RecordedValues, self).get(name)) for name in self.read)


def has_changed(names: Iterable[str], before: Mapping[str, Any], hp: Mapping[str, Any]) -> bool:
    """Whether one of the names has a new value."""
    return any(name in hp and not is_same_value(hp[name], before.get(name)) for name in names)


class ReadValues(RecordedValues):
    """The values of a step. read: the set to add read names to; iterating reads all."""

    def __init__(self, hp: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(hp)
        self.read = read

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(value, memo) for name, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self.items())  # a class that `torch.load` allows

    def __reversed__(self) -> Iterator[str]:
        return reversed(list[str](self.keys()))

    def __or__(self, other: Any) -> Any:
        return dict(self.items()) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self.items())

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def pop(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        self.read.update(super().keys())
        return super().popitem()

    def setdefault(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().setdefault(name, default)


class GivenValues:
    """The hyper-parameters that a trainer was given in `setup`, and the names that it has read."""

    def __init__(self) -> None:
        self._names, self._read = set[str](), set[str]()

    def give(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values for a `setup`, which record the names that are read until all have been."""
        self._names.update(values)
        return dict(values) if self._read.issuperset(values) else ReadValues(values, self._read)

    def unread(self) -> list[str]:
        return sorted(self._names - self._read)

    @contextmanager
    def ignoring_reads(self) -> Iterator[None]:
        """Ignore reads in the block, which are not the trainer's own."""
        before = set(self._read)
        yield
        self._read.intersection_update(before)
