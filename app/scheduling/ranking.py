"""Queues by urgency: the most urgent entry is at hand, however many there are."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from app.domain.ids import NodeId, StudyId
from app.processes import TrackedDict

Urgency = tuple[float, float]
"""(priority, seconds of training on the longest path for that priority): of trials in a study, or of studies"""

Urgencies = dict[StudyId, Urgency]
"""How urgent something is to each study that wants it."""

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


def raise_to(urgencies: Urgencies, others: Urgencies) -> None:
    """Each study's urgency becomes the higher of the two."""
    for study, urgency in others.items():
        urgencies[study] = max(urgencies.get(study, urgency), urgency)


class ChildQueue:
    """The children of a node that start at one step, each with its demand there, by urgency."""

    def __init__(self) -> None:
        self._by_study: dict[StudyId, Ranking[NodeId]] = {}
        self._studies_of: dict[NodeId, frozenset[StudyId]] = {}

    def put(self, child: NodeId, demand: Mapping[StudyId, Urgency]) -> bool:
        """A child has this demand now; whether any study's most urgent one has changed."""
        changed = False
        for study in self._studies_of.pop(child, frozenset()) | demand.keys():
            ranking = self._by_study.setdefault(study, Ranking())
            before = ranking.top()
            ranking.put(child, demand.get(study))
            changed |= ranking.top() != before
            if not ranking:
                del self._by_study[study]
        if demand:
            self._studies_of[child] = frozenset(demand)
        return changed

    def top(self, study: StudyId) -> tuple[Urgency, NodeId] | None:
        """The most urgent child of a study."""
        return self._by_study[study].top() if study in self._by_study else None

    def tops(self) -> Urgencies:
        """How urgent the most urgent child of each study is."""
        return {study: top[0] for study, ranking in self._by_study.items() if (top := ranking.top())}

    def children(self, study: StudyId | None = None) -> Iterator[NodeId]:
        """The children that a study wants, or that any does."""
        return iter(self._studies_of if study is None else self._by_study.get(study, ()))

    def __bool__(self) -> bool:
        return bool(self._studies_of)
