"""Tuners that stop trials by comparing their results with those of others."""

from __future__ import annotations

from typing import Literal

from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Count, common, finish_best_field, max_steps_field, num_trials_field
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy


class MedianTuner(SamplingTuner):
    """The median stopping rule: a trial whose best is worse than the median of the others' averages is stopped."""

    kind: Literal["median"] = "median"
    num_trials: Count = num_trials_field()
    max_steps: Count = max_steps_field()
    min_steps: Count = common(
        "min_steps", "the number of steps before which no trial is stopped, at least 1", default=1
    )
    min_trials: Count = common(
        "min_trials", "the number of others that a trial is compared with, at least 1", default=3
    )
    interval: Count | None = common(
        "interval",
        "the number of steps between decisions, at least 1; without it, the study's eval_every",
        default=None,
    )
    finish_best: Count | None = finish_best_field()

    def check_study(self, spec: TunedStudy) -> None:
        if self.interval is None and spec.eval_every is None:
            raise FieldError("tuner.interval", "is missing: the number of steps between decisions, or give eval_every")


class BanditTuner(SamplingTuner):
    """The bandit policy: a trial whose best is not within a factor of 1 + `epsilon` of the best of all is stopped."""

    kind: Literal["bandit"] = "bandit"
    num_trials: Count = num_trials_field()
    max_steps: Count = max_steps_field()
    interval: Count = common("interval", "the number of steps between decisions, at least 1", default=10)
    epsilon: float = common("epsilon", "a number, 0 or more", default=0.5, ge=0, allow_inf_nan=False)
    finish_best: Count | None = finish_best_field()
