"""The result of a trial: its value, and which trial is the best.

Everything that displays a best trial uses this definition. Failed trials come last regardless of their metrics, since
the cause of a failure, such as a growing batch size, is part of the configuration.

A trial's `last` result is the study's metric at the last requested step that has one. Its `best` is the best metric at
the steps that the study requests; ties go to the earlier step. The study file's `value` chooses between the two. Tuners
decide by the results that they requested, regardless of `value`. Evaluations for other studies change neither result.
A trial with cooldowns is not ranked: its cooldowns are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot, sqrt
from statistics import stdev
from typing import NamedTuple, Protocol

from app.domain.objectives import ResultScore, Scored
from app.domain.pareto_fronts import best_first
from app.domain.pareto_fronts import pareto_front as best_front
from app.domain.schedule import path
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId
from stagetree.text import RANKED_LAST


class MeasuredValue(NamedTuple):
    """The study's metric after a step; for a trial with repeats, the mean."""

    step: int
    value: float
    deviation: float | None = None
    """The sample standard deviation of the repeats; None for fewer than two."""
    repeats: int = 1
    """How many distinct runs it is the mean of."""
    repeats_from: int = 0
    """The step from which these runs differ. If it is not 0, the deviation has the noise of the branch alone."""


def score(plan: SearchPlan, study: Study, trial: Trial) -> ResultScore | None:
    """The trial's value with its other metrics and constraints; None if it has no value."""
    value = result(plan, study, trial)
    return None if value is None else study.spec.objectives.score(plan.metrics(trial, value.step) or {})


def sign(study: Study) -> int:
    """-1 if more is better, else 1: the smaller sign * value is always better."""
    return 1 if study.spec.mode == "min" else -1


def last_value(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The metric at the last requested step that has one."""
    for step in reversed(trial.requested_steps):
        if value := measured_value(plan, study, trial, step):
            return value
    return None


def best_of_curve(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The best metric at the steps that the study requests. Feasible results are better."""
    asked = (step for step, _ in plan.curve(trial) if study.spec.evaluates(step) or step in trial.requested_steps)
    scored = ((study.spec.objectives.score(plan.metrics(trial, step) or {}), step) for step in asked)
    best = min(((score, step) for score, step in scored if score is not None), default=None)
    return None if best is None else measured_value(plan, study, trial, best[1])


def result(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The trial's value: its last or its best result, as the study says."""
    return (best_of_curve if study.spec.value == "best" else last_value)(plan, study, trial)


def rank_trials(plan: SearchPlan, study: Study) -> list[tuple[Trial, MeasuredValue]]:
    """The trials with a value, best first; ties go to the lower number, and failed trials come last.

    Trunks of cooldowns are left out: their cooldowns are ranked.
    """
    values = _values(plan, study)
    groups = _failed_last(study, _scored(plan, study, values))
    return [(study.trials[number], values[number]) for group in filter(None, groups) for _, number in best_first(group)]


def contenders(order: list[tuple[Trial, MeasuredValue]]) -> list[tuple[Trial, MeasuredValue]]:
    """The ranked trials that can be the best: all that have not failed, or all if every one has failed."""
    return [each for each in order if each[0].state != RANKED_LAST] or order


def best_trial(study: Study, measured: Mapping[int, Mapping[str, float | None]]) -> int | None:
    """The number of the best trial, given their metrics; None if none has a result."""
    scores = ((study.spec.objectives.score(metrics), trial) for trial, metrics in measured.items())
    groups = _failed_last(study, ((score, trial) for score, trial in scores if score is not None))
    return next((trial for group in groups for _, trial in best_first(group)), None)


def pareto_front(plan: SearchPlan, study: Study) -> list[tuple[Trial, MeasuredValue]]:
    """The feasible trials not dominated by another; the first k of them are spread over the front.

    Failed trials count only if all trials with a result have failed.
    """
    values = _values(plan, study)
    group = next(filter(None, _failed_last(study, _scored(plan, study, values))), [])
    return [(study.trials[number], values[number]) for _, number in best_front(group)]


def _failed_last(study: Study, scored: Iterable[Scored]) -> tuple[list[Scored], list[Scored]]:
    """Two groups: trials that have not failed, and failed ones."""
    groups: tuple[list[Scored], list[Scored]] = ([], [])
    for each in scored:
        groups[study.trials[each[1]].state == RANKED_LAST].append(each)
    return groups


def _values(plan: SearchPlan, study: Study) -> dict[int, MeasuredValue]:
    """The values of the trials that are ranked, by number."""
    trunks = {trial.trunk for trial in study.trials if trial.trunk is not None}
    ranked = (trial for trial in study.trials if trial.number not in trunks)
    values = ((trial.number, result(plan, study, trial)) for trial in ranked)
    return {number: value for number, value in values if value is not None}


def _scored(plan: SearchPlan, study: Study, values: Mapping[int, MeasuredValue]) -> Iterator[Scored]:
    for number, value in values.items():
        measured = plan.metrics(study.trials[number], value.step) or {}
        if (own := study.spec.objectives.score(measured)) is not None:
            yield own, number


class Mean(Protocol):
    """The mean of repeats. deviation: their sample standard deviation; None if it is unknown."""

    @property
    def deviation(self) -> float | None: ...
    @property
    def repeats(self) -> int: ...


STANDARD_ERRORS = 2
"""Two means differ significantly if they are this many standard errors of the difference apart."""


def ties_with_best(order: Sequence[tuple[Trial, MeasuredValue]]) -> list[int]:
    """The trials whose means do not differ significantly from the best one's.

    Trials without repeats are never among them: their noise is unknown. Nor are trials on another trunk if repeats
    share the trunk: their deviations lack the noise of what comes before the branch.
    """
    if not order:
        return []
    (first, best), others = order[0], order[1:]
    return [trial.number for trial, value in others if _is_within_noise(best, value) and _trunk(trial) == _trunk(first)]


def _trunk(trial: Trial) -> NodeId | None:
    """The last node of the beginning that all repeats of a trial share, as if the study merged; None without one."""
    return next(reversed(path(trial.hp, trial.repeats_from, "")), None)


def _is_within_noise(one: MeasuredValue, other: MeasuredValue) -> bool:
    error = standard_error(one, other)
    return error is not None and abs(one.value - other.value) < STANDARD_ERRORS * error


def standard_error(one: Mean, other: Mean) -> float | None:
    """The standard error of the difference of two means; None if the noise of one is unknown."""
    if one.deviation is None or other.deviation is None:
        return None
    return hypot(one.deviation / sqrt(one.repeats), other.deviation / sqrt(other.repeats))


def best(plan: SearchPlan, study: Study) -> tuple[Trial, MeasuredValue] | None:
    """The best trial with its value; None if no trial has a value."""
    return next(iter(rank_trials(plan, study)), None)


def measured_value(plan: SearchPlan, study: Study, trial: Trial, step: int) -> MeasuredValue | None:
    """The metric after a step, the mean of all repeats; None until all are measured there."""
    score = study.spec.objectives.score(plan.metrics(trial, step) or {})
    if score is None:
        return None
    value = sign(study) * score.losses[0]
    if len(trial.runs) == 1:
        return MeasuredValue(step, value)
    each = [
        number for metrics in plan.metrics_by_run(trial, step) if (number := metrics.get(study.spec.metric)) is not None
    ]
    deviation = stdev(each) if len(each) > 1 else None
    return MeasuredValue(step, value, deviation, len(each), trial.repeats_from if deviation is not None else 0)
