"""A copy of the tables and the log in memory, which can take their place: a database that loses its last commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

SHARED = frozenset({"lock", "clock", "_undo"})
"""What tables have besides rows."""


def copy_parts(parts: Iterable[object]) -> Callable[[], None]:
    """A function that puts their present rows back. No transaction may be under way, neither now nor then."""
    kept = [(part, _rows(part)) for part in parts]

    def put_back() -> None:
        for part, rows in kept:
            vars(part).update(rows)

    return put_back


def _rows(part: object) -> dict[str, Any]:
    return {name: _copied(each) for name, each in vars(part).items() if name not in SHARED}


def _copied(value: Any) -> Any:
    """Containers are copied; rows and events never change."""
    if isinstance(value, dict):
        other = copy(value)
        for key, each in value.items():
            other[key] = _copied(each)
        return other
    return copy(value) if isinstance(value, list | set) else value
