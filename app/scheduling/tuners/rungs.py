"""Brackets of rungs: what SHA, ASHA and Hyperband have in common (ASHA paper, §3.1 and Figure 1)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from heapq import heappop, heappush

Scored = tuple[float, int]
"""(loss, trial): less is better, ties go to the trial that was started first."""

ENDLESS = 40
"""How many rungs there are without a highest: no study climbs them all."""


def rung_steps(least: int, most: int | None, factor: int, early_stopping_rate: int = 0) -> list[int]:
    """The steps at which the rungs of a bracket stand: r * eta^(s + k), and `most` for the last (r_i in Algorithm 1).

    Where `most` is no power of `factor` times `least`, there is one more rung at `most`, so that the best trial is
    always trained to the end. Without `most` (infinite horizon) the rungs have no end.
    """
    rungs = (least * factor ** (early_stopping_rate + rung) for rung in range(ENDLESS))
    return list(rungs) if most is None else [*(steps for steps in rungs if steps < most), most]


def rungs_down_from(most: int, rungs: int, factor: int) -> list[int]:
    """The steps of so many rungs, counted from the top: R / eta^k, rounded down (Hyperband, Algorithm 1: R eta^-s)."""
    return [most // factor**rung for rung in reversed(range(rungs))]


def log_floor(most: int, least: int, factor: int) -> int:
    """floor(log_factor(most / least)), exact."""
    found = 0
    while least * factor ** (found + 1) <= most:
        found += 1
    return found


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
