"""A rung: what SHA, ASHA and Hyperband have in common (ASHA paper, §3.1 and Figure 1)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from heapq import heappop, heappush

Scored = tuple[float, int]
"""(loss, trial): less is better, ties go to the trial that was started first."""


class Rung:
    """The results at one rung, best first, and who went on from there."""

    def __init__(self) -> None:
        self.scores: list[Scored] = []
        self.promoted: set[int] = set()
        self._waiting: list[Scored] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, loss: float, trial: int) -> None:
        """A trial came to this rung with this loss; infinite if it failed on the way: worst, and never to go on."""
        insort(self.scores, (loss, trial))
        if math.isfinite(loss):
            heappush(self._waiting, (loss, trial))

    def remove(self, trial: int) -> None:
        """The trial does not count any more: a user cancelled it. Where it went on it took its place, and keeps it."""
        if trial not in self.promoted:
            self.scores = [scored for scored in self.scores if scored[1] != trial]
            self._waiting = sorted(scored for scored in self._waiting if scored[1] != trial)

    def promote(self, trial: int) -> None:
        """The trial goes on."""
        self.promoted.add(trial)

    def best_waiting(self) -> Scored | None:
        """The best result whose trial has not gone on."""
        while self._waiting and self._waiting[0][1] in self.promoted:
            heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    def rank(self, scored: Scored) -> int:
        """How many results are better, from 0."""
        return bisect_left(self.scores, scored)
