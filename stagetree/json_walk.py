"""Walks through JSON of any depth, in time and memory in proportion to its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stagetree.sequences import Sequence

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Most values have one of these types. An isinstance check against abstract types takes ten times as long."""

Entries = Iterator[tuple[str | int | None, Any]]


class JsonWalk:
    """Iterates over every key, container and leaf of a value, without recursion. A sequence counts as its JSON.

    The place of the last one is written out only on demand: all paths of a long list under a long name together are
    many times as long as the JSON itself.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._names: list[str | int | None] = []
        self._lengths: list[int] = []
        self._is_at_key = False

    @property
    def depth(self) -> int:
        """The number of containers around the last item."""
        return len(self._names) - 1

    @property
    def path_length(self) -> int:
        """The number of characters in the names on the way to the last item's container."""
        return self._lengths[-1]

    @property
    def path(self) -> str:
        """The place of the last item, such as `space.lr[1]`; of a key, the place of its object."""
        names = self._names[:-1] if self._is_at_key else self._names
        parts = (f"[{name}]" if isinstance(name, int) else f".{name}" for name in names if name is not None)
        return "".join(parts).removeprefix(".")

    def __iter__(self) -> Iterator[Any]:
        ways: list[Entries] = [iter([(None, self._value)])]
        self._names, self._lengths = [None], [0]
        while ways:
            if (entry := next(ways[-1], None)) is None:
                for stack in (ways, self._names, self._lengths):
                    stack.pop()
                continue
            self._names[-1], item = entry
            if isinstance(name := self._names[-1], str):
                self._is_at_key = True
                yield name
                self._is_at_key = False
            item = item.to_json() if isinstance(item, Sequence) else item
            yield item
            if type(item) not in PLAIN and isinstance(item, list | tuple | Mapping):
                ways.append(_entries(item))
                self._lengths.append(self._lengths[-1] + len(str(self._names[-1] or "")))
                self._names.append(None)


def _entries(container: Any) -> Entries:
    if isinstance(container, Mapping):
        return ((str(name), item) for name, item in container.items())
    return iter(enumerate(container))
