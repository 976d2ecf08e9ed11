"""What a trial came to, and which trial is the best: the one definition that everything shown goes by.

A trial's `last` result is the study's metric at the last step that the trial was asked for and that has one; its `best`
is the best of the metric at any step evaluated on its way there, ties to the earlier step. The study file's `value`
says which of the two is the trial's value. Tuners decide on the results they asked for, whatever `value` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from app.domain.search_plan import SearchPlan, Study, Trial


class MeasuredValue(NamedTuple):
    """The study's metric after a step."""

    step: int
    value: float


def sign(study: Study) -> int:
    """-1 where more is better, so that the smaller sign * value is better; 1 where less is."""
    return 1 if study.mode == "min" else -1


def last(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The metric at the last step the trial was asked for that has one."""
    for step in reversed(trial.requested_steps):
        if found := _result(study, step, plan.metrics(trial, step) or {}):
            return found
    return None


def best_of_curve(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The best of the metric at any step evaluated so far on the trial's path."""
    results = (_result(study, step, metrics) for step, metrics in plan.curve(trial))
    return min(filter(None, results), key=lambda result: (sign(study) * result.value, result.step), default=None)


def result(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The trial's value by the study's choice, with its step."""
    return (best_of_curve if study.value == "best" else last)(plan, study, trial)


def ranked(plan: SearchPlan, study: Study) -> list[tuple[Trial, MeasuredValue]]:
    """The trials that have a value, the best first, ties to the lower number."""
    found = [(trial, value) for trial in study.trials if (value := result(plan, study, trial)) is not None]
    return sorted(found, key=lambda each: (sign(study) * each[1].value, each[0].number))


def best(plan: SearchPlan, study: Study) -> tuple[Trial, MeasuredValue] | None:
    """The best trial with its value; None as long as none has one."""
    return next(iter(ranked(plan, study)), None)


def _result(study: Study, step: int, metrics: Mapping[str, float | None]) -> MeasuredValue | None:
    value = metrics.get(study.metric)
    return MeasuredValue(step, value) if value is not None and math.isfinite(value) else None
