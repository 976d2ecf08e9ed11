"""Hyper-parameters that shape a model, and small checks of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


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
        return all(hp.get(name) == super(Recorded, self).get(name) for name in self.read)


def changed(names: Iterable[str], before: Mapping[str, Any], hp: Mapping[str, Any]) -> bool:
    """Whether one of the names has another value than before."""
    return any(name in hp and hp[name] != before.get(name) for name in names)


def whole_number(name: str, value: Any) -> int:
    """A positive whole number. Raises ValueError."""
    if value != int(value) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return int(value)
