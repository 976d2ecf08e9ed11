"""One rung of successive halving: its results, best first, and its promoted trials."""

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
"""(loss or score, trial): less is better, ties go to the trial that started first."""


class RungScores:
    """The results at one rung, best first, and the promoted trials."""

    def __init__(self) -> None:
        self.scores: list[Scored] = []
        self.promoted: set[int] = set()
        self._waiting: list[Scored] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, loss: Key, trial: int) -> None:
        """Add a trial's result. An infinite loss means that it failed on the way: the worst, and never promoted."""
        insort(self.scores, (loss, trial))
        if is_result(loss):
            heappush(self._waiting, (loss, trial))

    def remove(self, trial: int) -> None:
        """Remove a cancelled trial. A promoted one keeps its place."""
        if trial not in self.promoted:
            self.scores = [scored for scored in self.scores if scored[1] != trial]
            self._waiting = sorted(scored for scored in self._waiting if scored[1] != trial)

    def promote(self, trial: int) -> None:
        self.promoted.add(trial)

    def next_up(self, cut: int) -> tuple[Scored, int] | None:
        """The best result that was not promoted and its rank, if it is among the first `cut`."""
        while self._waiting and self._waiting[0][1] in self.promoted:
            heappop(self._waiting)
        if not self._waiting or (rank := self.rank(self._waiting[0])) >= cut:
            return None
        return self._waiting[0], rank

    def rank(self, scored: Scored) -> int:
        """The number of better results."""
        return bisect_left(self.scores, scored)


class RungFronts(RungScores):
    """A rung of a study with several metrics, or constraints: the order of results depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scored: dict[int, ResultScore] = {}
        self._ranking = ParetoRanking()
        self._rest: Iterator[Scored] | None = None  # the order after `scores`; None if it is outdated

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
        """Only the best `count` are sorted: sorting all may be the most expensive part."""
        if self._rest is None:
            self.scores, self._rest = [], self._ranking.best_first()
        self.scores += islice(self._rest, max(0, count - len(self.scores)))
        return self.scores[:count]

    def rank(self, scored: Scored) -> int:
        return self._first(len(self)).index(scored)


def sort_results(scored: Iterable[Scored]) -> list[Scored]:
    """Results, best first."""
    results = list(scored)
    scores = [(key, trial) for key, trial in results if isinstance(key, ResultScore)]
    return [*best_first(scores)] if scores else sorted(results)


def is_result(key: Key) -> bool:
    """Whether the trial did not fail."""
    return math.isfinite(key.violation if isinstance(key, ResultScore) else key)


def key_in_words(key: Key) -> dict[str, Any]:
    """The key as fields of a reason."""
    if not isinstance(key, ResultScore):
        return {"loss": key}
    return {"losses": list(key.losses)} | ({} if key.is_feasible else {"violation": key.violation})


def rung_kind(tuner: Tuner) -> type[RungScores]:
    """The class that sorts a tuner's results."""
    return RungScores if tuner.objectives.is_plain else RungFronts
