"""Hyper-parameters that shape a model, and whether they change; and hyper-parameters that a script has read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stagetree.sequences import is_same_value


class Recorded(dict[str, Any]):
    """Hyper-parameters that remember which of them were read."""

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
        """Whether a model that was built from these is what would be built from others."""
        return all(is_same_value(hp.get(name), super(Recorded, self).get(name)) for name in self.read)


def changed(names: Iterable[str], before: Mapping[str, Any], hp: Mapping[str, Any]) -> bool:
    """Whether one of the names has another value than before."""
    return any(name in hp and not is_same_value(hp[name], before.get(name)) for name in names)


class ReadValues(Recorded):
    """The values of a step. read: where the names that are read are added; whoever goes through all has read all."""

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

    def pop(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        return super().pop(name, *default)
