"""Things by urgency: the most urgent one is at hand, however many there are."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from app.gc_tuning import TrackedDict

Urgency = tuple[float, float]
"""(priority, seconds of training on the longest path for that priority): of trials in a study, or of studies"""

Key = TypeVar("Key", bound=Any)


class Ranking(Generic[Key]):
    """Keys that can be ordered, each with its urgency; ties go to the smaller key."""

    __slots__ = ("_heap", "_urgency")

    def __init__(self) -> None:
        self._urgency = TrackedDict[Key, Urgency]()
        self._heap: list[tuple[float, float, Key]] = []  # some of it out of date, as far as that is not in the way

    def put(self, key: Key, urgency: Urgency | None) -> None:
        """The key is so urgent now; None takes it out."""
        if urgency is None:
            self._urgency.pop(key, None)
        elif self._urgency.get(key) != urgency:
            self._urgency[key] = urgency
            if len(self._heap) > 2 * len(self._urgency):
                self._heap = [(-priority, -seconds, known) for known, (priority, seconds) in self._urgency.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (-urgency[0], -urgency[1], key))

    def top(self) -> tuple[Urgency, Key] | None:
        """The most urgent key."""
        while self._heap:
            priority, seconds, key = self._heap[0]
            if self._urgency.get(key) == (-priority, -seconds):
                return (-priority, -seconds), key
            heapq.heappop(self._heap)
        return None

    def __iter__(self) -> Iterator[Key]:
        return iter(self._urgency)

    def __len__(self) -> int:
        return len(self._urgency)
