"""One rung of a tuner by successive halving: its results, the best first, and who went on from there."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from app.domain.objectives import ResultScore
from app.domain.pareto_fronts import ParetoRanking, best_first
from app.search.tuners.base import Key, Tuner

Scored = tuple[Key, int]
"""(loss or score, trial): less is better, ties go to the trial that was started first."""


class RungScores:
    """The results at one rung, best first, and who went on from there."""

    def __init__(self) -> None:
        self.scores: list[Scored] = []
        self.promoted: set[int] = set()
        self._waiting: list[Scored] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, loss: Key, trial: int) -> None:
        """A trial came to this rung with this loss; infinite if it failed on the way: worst, and never to go on."""
        insort(self.scores, (loss, trial))
        if is_result(loss):
            heappush(self._waiting, (loss, trial))

    def remove(self, trial: int) -> None:
        """The trial does not count any more: a user cancelled it. Where it went on it took its place, and keeps it."""
        if trial not in self.promoted:
            self.scores = [scored for scored in self.scores if scored[1] != trial]
            self._waiting = sorted(scored for scored in self._waiting if scored[1] != trial)

    def promote(self, trial: int) -> None:
        """The trial goes on."""
        self.promoted.add(trial)

    def next_up(self, cut: int) -> tuple[Scored, int] | None:
        """The best result whose trial has not gone on, if it is among the first `cut`, and how many are better."""
        while self._waiting and self._waiting[0][1] in self.promoted:
            heappop(self._waiting)
        if not self._waiting or (rank := self.rank(self._waiting[0])) >= cut:
            return None
        return self._waiting[0], rank

    def rank(self, scored: Scored) -> int:
        """How many results are better, from 0."""
        return bisect_left(self.scores, scored)


class RungFronts(RungScores):
    """The results at one rung of a study with several metrics, or constraints: their order depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scored: dict[int, ResultScore] = {}
        self._ranking = ParetoRanking()
        self._rest: Iterator[Scored] | None = None  # the order behind `scores`; None where that is of before

    def add(self, loss: Key, trial: int) -> None:
        assert isinstance(loss, ResultScore)
        self._scored[trial] = loss
        self._ranking.add((loss, trial))
        self._rest = None

    def remove(self, trial: int) -> None:
        if trial not in self.promoted and self._scored.pop(trial, None) is not None:
            self._ranking = ParetoRanking((score, trial) for trial, score in self._scored.items())
            self._rest = None

    def __len__(self) -> int:
        return len(self._scored)

    def next_up(self, cut: int) -> tuple[Scored, int] | None:
        for rank, each in enumerate(self._first(cut)):
            if each[1] not in self.promoted and is_result(each[0]):
                return each, rank
        return None

    def _first(self, count: int) -> list[Scored]:
        """The best ones, which is all that is put in order: the rest may cost more than all else."""
        if self._rest is None:
            self.scores, self._rest = [], self._ranking.best_first()
        self.scores += islice(self._rest, max(0, count - len(self.scores)))
        return self.scores[:count]

    def rank(self, scored: Scored) -> int:
        return self._first(len(self)).index(scored)


def in_order(scored: Iterable[Scored]) -> list[Scored]:
    """Results, the best first."""
    results = list(scored)
    scores = [(key, trial) for key, trial in results if isinstance(key, ResultScore)]
    return [*best_first(scores)] if scores else sorted(results)


def is_result(key: Key) -> bool:
    """Whether a trial has a result at all."""
    return math.isfinite(key.violation if isinstance(key, ResultScore) else key)


def key_in_words(key: Key) -> dict[str, Any]:
    """What a result is compared by, as it stands in a reason."""
    if not isinstance(key, ResultScore):
        return {"loss": key}
    return {"losses": list(key.losses)} | ({} if key.is_feasible else {"violation": key.violation})


def rung_kind(tuner: Tuner) -> type[RungScores]:
    """How the rungs of a tuner order their results."""
    return RungScores if tuner.objectives.is_plain else RungFronts
