"""Names of hyper-parameters that would be taken for a field of another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stagetree.space.distributions import SpaceError


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
