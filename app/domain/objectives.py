"""What a study wants: one metric or several, and constraints; and in which order results are the best.

A result that breaks no constraint is feasible, and better than any that does; of two that do, the better one
breaks them by less (Deb et al. 2002, NSGA-II, §VI, constrain-domination). Of two feasible results one dominates if
it is no worse in any metric and better in one. Results that none dominates are the front, results that only the front
dominates are the next one, and so on (§III-A): that is the non-dominated rank. Within a front the order is an epsilon
net, as in MO-ASHA (Schmucker et al. 2021, arXiv:2106.12639, §3): first the best by the first metric, and then always
the one that is furthest from all before it, so that the first k of a front are spread over it for any k. Distances
are counted in parts of the front's own extent in each metric, so that no unit weighs more than another.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from app.domain.terms import FailureKind
from stagetree.sequences import SequenceError
from stagetree.space.constraints import Constraint, read_constraint


class ResultScore(NamedTuple):
    """A result, less of everything being better.

    violation: by how much it breaks constraints, 0 if it is feasible. losses: the metrics, each turned so that less is
    better. Compared as tuples, scores of one metric are in the order of the best.
    """

    violation: float
    losses: tuple[float, ...]

    @property
    def is_feasible(self) -> bool:
        return self.violation == 0


FAILED = ResultScore(math.inf, ())
"""Of a trial that has no result, and will have none."""

Scored = tuple[ResultScore, int]
"""(score, trial): ties go to the trial that was started first."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """goals: the metrics with 1 where less is better, -1 where more is; the first is the one that is shown alone."""

    goals: tuple[tuple[str, int], ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is one metric without constraints: a number says it all."""
        return len(self.goals) == 1 and not self.constraints

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that a result must have, in order."""
        bounded = (name for constraint in self.constraints for name in constraint.names)
        return tuple(dict.fromkeys((*(name for name, _ in self.goals), *bounded)))

    def score(self, metrics: Mapping[str, float | None]) -> ResultScore | None:
        """Of a result; None where something is missing."""
        if self.problem(metrics, 0) is not None:
            return None
        losses = tuple(sign * float(metrics[name] or 0.0) for name, sign in self.goals)
        return ResultScore(sum((each.violation(metrics) for each in self.constraints), 0.0), losses)

    def problem(self, metrics: Mapping[str, float | None], step: int) -> dict[str, Any] | None:
        """Why metrics after a step are no result, if they are none: one is missing, or a constraint has no value."""
        for name in self.metrics:
            if (problem := problem_of(name, metrics, step)) is not None:
                return problem
        for constraint in self.constraints:
            try:
                constraint.violation(metrics)
            except SequenceError as error:
                text = f"the constraint {constraint.text} has no value after step {step}: {error.problem}"
                return {"kind": FailureKind.METRIC, "step": step, "error": text}
        return None


def problem_of(name: str, metrics: Mapping[str, float | None], step: int) -> dict[str, Any] | None:
    """Why there is no result among these metrics for a study that needs that one, if there is none."""
    if name not in metrics:
        reported = ", ".join(sorted(metrics)) or "nothing"
        text = f"the trainer does not report {name!r}, the metric of the study; it reports {reported}"
        return {"kind": FailureKind.METRIC, "step": step, "error": text}
    value = metrics[name]
    if value is None or not math.isfinite(value):
        return {"kind": FailureKind.NAN, "step": step, "error": f"{name} is not a finite number after step {step}"}
    return None


def objectives_of(spec: Mapping[str, Any]) -> Objectives:
    """What a study file wants."""
    metrics = spec.get("metrics") or [{"name": spec.get("metric", ""), "mode": spec.get("mode", "")}]
    goals = tuple((str(each["name"]), 1 if each["mode"] == "min" else -1) for each in metrics)
    return _objectives(goals, tuple(spec.get("constraints") or ()))


@lru_cache(maxsize=1000)
def _objectives(goals: tuple[tuple[str, int], ...], constraints: tuple[str, ...]) -> Objectives:
    return Objectives(goals, tuple(map(read_constraint, constraints)))


# --------------------------------------------------------------------------------------------------------- the order


def best_first(scored: Iterable[Scored]) -> Iterator[Scored]:
    """The results in the order of the best: front by front, each as an epsilon net, then by violation."""
    results = list(scored)
    for front in fronts(each for each in results if each[0].is_feasible):
        yield from _spread(front)
    yield from sorted(each for each in results if not each[0].is_feasible)


def front_of(scored: Iterable[Scored]) -> list[Scored]:
    """The feasible results that none dominates, spread; none where none is feasible."""
    by_front = fronts(each for each in scored if each[0].is_feasible)
    return list(_spread(by_front[0])) if by_front else []


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether losses are no worse in any metric, and better in one."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def fronts(scored: Iterable[Scored]) -> list[list[Scored]]:
    """Feasible results by non-dominated rank, each front in the order of its losses.

    By efficient non-dominated sort (Zhang et al. 2015, ENS-BS): in the order of the losses none dominates one before
    it, so that each goes to the first front of which none dominates it. That is found by halving, since a result that
    is dominated in one front is dominated in all before it.
    """
    by_front: list[list[Scored]] = []
    for each in sorted(scored):
        place = bisect_left(by_front, True, key=lambda front: not _is_behind(each, front))
        if place == len(by_front):
            by_front.append([])
        by_front[place].append(each)
    return by_front


def _is_behind(each: Scored, front: list[Scored]) -> bool:
    """Whether one of a front dominates a result that comes after it. Of two metrics the last of it says it alone."""
    losses = each[0].losses
    ahead = front[-1:] if len(losses) <= 2 else reversed(front)
    return any(dominates(other[0].losses, losses) for other in ahead)


def _spread(front: list[Scored]) -> Iterator[Scored]:
    """A front as an epsilon net, which begins with the best by the first metric."""
    columns = list(zip(*(score.losses for score, _ in front), strict=True))
    extents = [(max(column) - min(column)) or 1.0 for column in columns]
    left = [(each, _point(each[0].losses, extents)) for each in sorted(front)]
    distances = [math.inf] * len(left)
    while left:
        chosen = distances.index(max(distances))
        del distances[chosen]
        each, point = left.pop(chosen)
        yield each
        distances = [min(far, math.dist(point, other)) for far, (_, other) in zip(distances, left, strict=True)]


def _point(losses: Sequence[float], extents: Sequence[float]) -> list[float]:
    return [loss / extent for loss, extent in zip(losses, extents, strict=True)]
