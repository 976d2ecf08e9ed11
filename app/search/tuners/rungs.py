"""One rung of successive halving: its results, best first, and its promoted trials."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from app.domain.leaderboard import BY_NUMBER, TieOrder, trial_of
from app.domain.objectives import ResultScore
from app.domain.pareto_fronts import ParetoRanking, best_first
from app.search.tuners.base import Key, objectives_in
from stagetree.spec import StudySpec

Scored = tuple[Key, int]
"""(loss or score, tie break): less is better."""


class Ranked(NamedTuple):
    """A trial at a rung. rank: the number of better results."""

    trial: int
    key: Key
    rank: int


class RungScores:
    """The results at one rung, best first, and the promoted trials."""

    def __init__(self, number: int = 0, ties: TieOrder = BY_NUMBER) -> None:
        self.number, self.ties = number, ties
        self.scores: list[Scored] = []
        self.promoted: set[int] = set()
        self._waiting: list[Scored] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, loss: Key, trial: int) -> None:
        """Add a trial's result. An infinite loss means that it failed on the way: the worst, and never promoted."""
        insort(self.scores, (loss, self.tie_break(trial)))
        if is_result(loss):
            heappush(self._waiting, (loss, self.tie_break(trial)))

    def tie_break(self, trial: int) -> int:
        """What sorts a trial among equal results."""
        return self.ties.tie_break(self.number, trial)

    def remove(self, trial: int) -> None:
        """Remove a cancelled trial. A promoted one keeps its place."""
        if trial not in self.promoted:
            tie_break = self.tie_break(trial)
            self.scores = [scored for scored in self.scores if scored[1] != tie_break]
            self._waiting = sorted(scored for scored in self._waiting if scored[1] != tie_break)

    def promote(self, trial: int) -> None:
        self.promoted.add(trial)

    def next_up(self, cut: int) -> Ranked | None:
        """The best result that was not promoted, if it is among the first `cut`."""
        while self._waiting and trial_of(self._waiting[0][1]) in self.promoted:
            heappop(self._waiting)
        if not self._waiting:
            return None
        key, tie_break = self._waiting[0]
        ranked = self.rank(key, trial_of(tie_break))
        return ranked if ranked.rank < cut else None

    def rank(self, key: Key, trial: int) -> Ranked:
        """A trial that has this result, with its rank."""
        return Ranked(trial, key, bisect_left(self.scores, (key, self.tie_break(trial))))

    def reason(self, ranked: Ranked, cut: int) -> dict[str, Any]:
        """The fields of a reason that say where a trial ranks, and whether it ranks there by a draw."""
        equal = self.count_equal(ranked.key) if self.ties.is_drawn else 1
        drawn = {"drawn_among": equal} if equal > 1 else {}
        return {"rank": ranked.rank + 1, "cut": cut, "of": len(self), **drawn, **key_in_words(ranked.key)}

    def count_equal(self, key: Key) -> int:
        """The number of results that equal this one."""
        first = itemgetter(0)
        return bisect_right(self.scores, key, key=first) - bisect_left(self.scores, key, key=first)


class RungFronts(RungScores):
    """A rung of a study with several metrics, or constraints: the order of results depends on all of them."""

    def __init__(self, number: int = 0, ties: TieOrder = BY_NUMBER) -> None:
        super().__init__(number, ties)
        self._scored: dict[int, ResultScore] = {}  # by tie break
        self._ranking = ParetoRanking()
        self._rest: Iterator[Scored] | None = None  # the order after `scores`; None if it is outdated

    def add(self, loss: Key, trial: int) -> None:
        assert isinstance(loss, ResultScore)
        self._scored[self.tie_break(trial)] = loss
        self._ranking.add((loss, self.tie_break(trial)))
        self._rest = None

    def remove(self, trial: int) -> None:
        if trial not in self.promoted and self._scored.pop(self.tie_break(trial), None) is not None:
            self._ranking = ParetoRanking((score, tie_break) for tie_break, score in self._scored.items())
            self._rest = None

    def __len__(self) -> int:
        return len(self._scored)

    def next_up(self, cut: int) -> Ranked | None:
        for rank, (key, tie_break) in enumerate(self._first(cut)):
            if trial_of(tie_break) not in self.promoted and is_result(key):
                return Ranked(trial_of(tie_break), key, rank)
        return None

    def _first(self, count: int) -> list[Scored]:
        """Only the best `count` are sorted: sorting all may be the most expensive part."""
        if self._rest is None:
            self.scores, self._rest = [], self._ranking.best_first()
        self.scores += islice(self._rest, max(0, count - len(self.scores)))
        return self.scores[:count]

    def rank(self, key: Key, trial: int) -> Ranked:
        return Ranked(trial, key, self._first(len(self)).index((key, self.tie_break(trial))))

    def count_equal(self, key: Key) -> int:
        return sum(score == key for score in self._scored.values())


def sort_results(scored: Iterable[tuple[Key, int]]) -> list[tuple[Key, int]]:
    """Results with their trials, best first; ties go to the lower number."""
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


MakeRung = Callable[[int], RungScores]
"""Makes an empty rung of this number."""


def rung_maker(spec: StudySpec) -> MakeRung:
    """Rungs that sort the results of a study as it ranks them."""
    tuner: Any = spec.tuner
    kind = RungScores if objectives_in(spec).is_plain else RungFronts
    return partial(kind, ties=TieOrder.from_field(tuner.ties, spec.sampling_seed))
