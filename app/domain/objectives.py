"""What a study wants: one metric or several, and constraints; and by what its results are compared.

A result that breaks no constraint is feasible, and better than any that does; of two that do, the better one
breaks them by less (Deb et al. 2002, NSGA-II, §VI, constrain-domination). The order of several is in `fronts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from app.domain.terms import FailureKind
from stagetree.sequences import SequenceError, did_you_mean
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
        text += did_you_mean(name, sorted(metrics))
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


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best result of a trial for a study. metrics: empty where there is none.

    wants: the fields of the study file that say which is better. every, steps: when the study asks for one, the last of
    these at the latest.
    """

    wants: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    every: int | None = None
    steps: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BestSoFar:
        return cls(**{**data, "steps": tuple(data["steps"])})

    def is_beaten_at(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether these are better; as good ones are not, for of two results the earlier one is the best."""
        is_asked = step in self.steps or (self.every and step % self.every == 0)
        if not is_asked or step > max(self.steps, default=step):
            return False
        objectives = objectives_of(self.wants)
        score, best = objectives.score(metrics), objectives.score(self.metrics)
        return score is not None and (best is None or score < best)


class BestResults:
    """The best results of a trial for several studies, while more come in."""

    def __init__(self, best: Iterable[BestSoFar]) -> None:
        self._best = list(best)

    def take(self, results: Mapping[int, Mapping[str, float | None]]) -> tuple[int, ...]:
        """The numbers of the studies for which the last of these is the best result from here on. results: by step."""
        beaten = tuple[int, ...]()
        for step, metrics in sorted(results.items()):
            beaten = tuple(number for number, best in enumerate(self._best) if best.is_beaten_at(step, metrics))
            for number in beaten:
                self._best[number] = replace(self._best[number], metrics=metrics)
        return beaten


OBJECTIVE_FIELDS = ("metric", "mode", "metrics", "constraints")


@lru_cache(maxsize=1000)
def _objectives(goals: tuple[tuple[str, int], ...], constraints: tuple[str, ...]) -> Objectives:
    return Objectives(goals, tuple(map(read_constraint, constraints)))
