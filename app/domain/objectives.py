"""The objectives of a study, one metric or several with constraints, and the comparison of results.

A result that breaks no constraint is feasible, and better than any that does. Of two violating results, the smaller
total violation wins (Deb et al. 2002, NSGA-II, §VI, constrain-domination). `pareto_fronts` orders several metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from app.domain.terms import FailureKind
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space.constraints import Constraint, read_constraint


class ResultScore(NamedTuple):
    """A result for comparison; smaller is better in each field.

    violation: the total violation of constraints, 0 if it is feasible. losses: the metrics, negated if more is better.
    With one metric, the order of the tuples is the ranking.
    """

    violation: float
    losses: tuple[float, ...]

    @property
    def is_feasible(self) -> bool:
        return self.violation == 0


FAILED = ResultScore(math.inf, ())
"""The score of a trial that failed without a result."""

Scored = tuple[ResultScore, int]
"""(score, trial). Ties go to the earlier trial."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """goals: the metrics, each with 1 if less is better, else -1. The first is displayed if only one fits.

    metrics: all that a result must have, in order.
    """

    goals: tuple[tuple[str, int], ...]
    constraints: tuple[Constraint, ...] = ()
    metrics: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        bounded = (name for constraint in self.constraints for name in constraint.names)
        names = dict.fromkeys((*(name for name, _ in self.goals), *bounded))
        object.__setattr__(self, "metrics", tuple(names))

    @property
    def is_plain(self) -> bool:
        """Whether there is one metric and no constraint, so that one number is a complete score."""
        return len(self.goals) == 1 and not self.constraints

    def score(self, metrics: Mapping[str, float | None]) -> ResultScore | None:
        """The score of a result; None if it is incomplete."""
        for name in self.metrics:
            if (value := metrics.get(name)) is None or not math.isfinite(value):
                return None
        try:
            violation = sum((each.violation(metrics) for each in self.constraints), 0.0)
        except SequenceError:
            return None
        return ResultScore(violation, tuple([sign * float(metrics[name] or 0.0) for name, sign in self.goals]))

    def reaches(self, target: float, metrics: Mapping[str, float | None]) -> bool:
        """Whether a result is as good as a target of the first metric, and breaks no constraint."""
        score = self.score(metrics)
        return score is not None and score.is_feasible and score.losses[0] <= self.goals[0][1] * target

    def problem(self, metrics: Mapping[str, float | None], step: int) -> dict[str, Any] | None:
        """Why metrics after a step are not a result: one is missing, or a constraint has no value. None if they are."""
        for name in self.metrics:
            if (problem := metric_problem(name, metrics, step)) is not None:
                return problem
        for constraint in self.constraints:
            try:
                constraint.violation(metrics)
            except SequenceError as error:
                text = f"the constraint {constraint.text} has no value after step {step}: {error.problem}"
                return {"kind": FailureKind.METRIC, "step": step, "error": text}
        return None


def metric_problem(name: str, metrics: Mapping[str, float | None], step: int) -> dict[str, Any] | None:
    """Why the metric `name` is missing or not finite; None if it is neither."""
    if name not in metrics:
        reported = ", ".join(sorted(metrics)) or "nothing"
        text = f"the trainer does not report {name!r}, the metric of the study; it reports {reported}"
        text += did_you_mean(name, sorted(metrics))
        return {"kind": FailureKind.METRIC, "step": step, "error": text}
    value = metrics[name]
    if value is None or not math.isfinite(value):
        return {"kind": FailureKind.NAN, "step": step, "error": f"{name} is not a finite number after step {step}"}
    return None


def read_objectives(spec: Mapping[str, Any]) -> Objectives:
    """The objectives in a study file."""
    metrics = spec.get("metrics") or [{"name": spec.get("metric", ""), "mode": spec.get("mode", "")}]
    goals = tuple((str(each["name"]), 1 if each["mode"] == "min" else -1) for each in metrics)
    return _objectives(goals, tuple(spec.get("constraints") or ()))


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best result of a trial for a study. metrics: empty if there is no result yet.

    wants: the study file's fields of the objectives. every, steps: the study requests results at multiples of `every`
    and at `steps`, up to the last of `steps`.
    """

    wants: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    every: int | None = None
    steps: tuple[int, ...] = ()
    target: float | None = None
    """The study's target, if evaluations may reach it."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BestSoFar:
        return cls(**{**data, "steps": tuple(data["steps"])})

    def _requests(self, step: int) -> bool:
        is_requested = step in self.steps or (self.every and step % self.every == 0)
        return bool(is_requested) and step <= max(self.steps, default=step)

    def is_beaten_at(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether requested metrics are better than the best ones. Ties go to the earlier result."""
        if not self._requests(step):
            return False
        objectives = read_objectives(self.wants)
        score, best = objectives.score(metrics), objectives.score(self.metrics)
        return score is not None and (best is None or score < best)

    def reaches_target_at(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether requested metrics are as good as the target."""
        return (
            self.target is not None
            and self._requests(step)
            and read_objectives(self.wants).reaches(self.target, metrics)
        )


class BestResults:
    """The best results of a trial for several studies, updated with each result."""

    def __init__(self, best: Iterable[BestSoFar]) -> None:
        self._best = list(best)

    def take(self, results: Mapping[int, Mapping[str, float | None]]) -> tuple[int, ...]:
        """Add results, given by step. Returns the indices of the studies for which the last one is the new best."""
        beaten = tuple[int, ...]()
        for step, metrics in sorted(results.items()):
            beaten = tuple(number for number, best in enumerate(self._best) if best.is_beaten_at(step, metrics))
            for number in beaten:
                self._best[number] = replace(self._best[number], metrics=metrics)
        return beaten

    def reach_target_at(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether a result is as good as the target of a study."""
        return any(best.reaches_target_at(step, metrics) for best in self._best)


OBJECTIVE_FIELDS = ("metric", "mode", "metrics", "constraints")


@lru_cache(maxsize=1000)
def _objectives(goals: tuple[tuple[str, int], ...], constraints: tuple[str, ...]) -> Objectives:
    return Objectives(goals, tuple(map(read_constraint, constraints)))
