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


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is large enough; 32.0 is one. Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < least or not float(value).is_integer():
        raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
    return int(value)
