"""Tuners that stop trials early, by comparison with other trials or by predicting learning curves.

`stop_hopeless` adds such predictions to a study with another tuner.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from stagetree.spec.errors import FieldError, shorten
from stagetree.spec.fields import (
    Bounds,
    Count,
    SpecPart,
    aliased,
    as_target,
    check_bounds,
    finish_best_field,
    max_steps_field,
    num_trials_field,
)
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy


def _keep_top() -> Any:
    return Field(
        default=1 / 3,
        ge=0,
        le=1,
        description="a number from 0 to 1: the best part of the trials at a step, which predictions never stop there",
    )


class MedianTuner(SamplingTuner):
    """The median stopping rule: a trial whose best is worse than the median of the others' averages is stopped."""

    kind: Literal["median"] = "median"
    num_trials: Count = num_trials_field()
    max_steps: Count = max_steps_field()
    min_steps: Count = aliased(
        "min_steps", "the number of steps before which no trial is stopped, at least 1", default=1
    )
    min_trials: Count = aliased(
        "min_trials", "the number of others that a trial is compared with, at least 1", default=3
    )
    interval: Count | None = aliased(
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
    interval: Count = aliased("interval", "the number of steps between decisions, at least 1", default=10)
    epsilon: float = aliased("epsilon", "a number, 0 or more", default=0.5, ge=0, allow_inf_nan=False)
    finish_best: Count | None = finish_best_field()


class CurveTuner(SamplingTuner):
    """The base class of tuners that predict learning curves and decide at boundaries."""

    num_trials: Count = num_trials_field()
    max_steps: Count = max_steps_field()
    keep_top: float = _keep_top()
    bounds: Bounds = Field(
        default=[None, None], description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def check_study(self, spec: TunedStudy) -> None:
        check_bounds(self.bounds, "tuner.bounds")


class EarlyTermTuner(CurveTuner):
    """Predictive termination: stops a trial that is unlikely to reach the current best value."""

    kind: Literal["early_term"] = "early_term"
    boundary: Count = aliased("boundary", "the number of steps between decisions, at least 1", default=30)
    delta: float = Field(default=0.05, ge=0, le=1, description="a number from 0 to 1: less likely trials end")


_TARGET = float | list[float]


class PopTuner(CurveTuner):
    """POP: promising trials get dedicated slots, the others take turns, and hopeless ones are stopped."""

    kind: Literal["pop"] = "pop"
    target: Annotated[float | list[float] | None, PlainValidator(as_target, json_schema_input_type=_TARGET)] = Field(
        default=None,
        description="a number, or a list of numbers that are targets in turn; without it, the best value so far",
    )
    max_time: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = aliased(
        "max_time", "a number of seconds above 0: when the study ends, however far it is", default=None
    )
    boundary: Count | None = aliased(
        "boundary", "the number of steps between decisions, at least 1; without it, a tenth of max_steps", default=None
    )
    kill_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="a number: a trial with a worse value ends"
    )
    min_steps: Count = aliased(
        "min_steps", "the number of steps before which kill_threshold ends no trial, at least 1", default=1
    )
    lower_bound: float = Field(
        default=0.05, ge=0, le=1, description="a number from 0 to 1: a trial that is less likely to get there ends"
    )

    order_by: Literal["rank_at_step", "rank", "p"] = Field(
        default="rank_at_step",
        description="rank_at_step, rank or p: whether trials continue in the order of their rank among trials at their "
        "step; of that rank as far as the best tenth, and then of their last value, the default of 0.1.0; or of the "
        "probability that they reach the target",
    )

    def targets(self) -> list[float]:
        """The successive targets; empty if the tuner has none of its own."""
        if self.target is None:
            return []
        return [*self.target] if isinstance(self.target, list) else [self.target]

    def check_study(self, spec: TunedStudy) -> None:
        super().check_study(spec)
        targets = self.targets()
        for one, following in itertools.pairwise(targets):
            if not (one < following if spec.mode == "max" else one > following):
                raise FieldError("tuner.target", f"must be harder one after the other, got {one:g}, {following:g}")
        least, greatest = self.bounds
        for target in targets:
            if (least is not None and target < least) or (greatest is not None and target > greatest):
                raise FieldError(
                    "tuner.target", f"must lie within tuner.bounds, {shorten(self.bounds)}, got {target:g}"
                )


UNSUPPORTED_TUNERS = {
    "pop": "which ends trials by its own predictions",
    "early_term": "which ends trials by its own predictions",
    "pbt": "whose trials change their values during training, so that a curve does not predict its continuation",
    "external": "whose trials belong to external programs",
}
"""Tuners that cannot be combined with `stop_hopeless`. All others treat a stopped trial like a failed one."""


class StopHopeless(SpecPart):
    """The predictive termination criterion (Domhan et al. 2015, §4) beside the study's own tuner."""

    boundary: Count | None = aliased(
        "boundary", "the number of steps between decisions, at least 1; without it, a tenth of max_steps", default=None
    )
    delta: float = Field(default=0.05, ge=0, le=1, description="a number from 0 to 1: less likely trials end")
    max_steps: Count | None = aliased(
        "max_steps", "a number of steps, at least 1: the step to predict, if the tuner does not define it", default=None
    )
    keep_top: float = _keep_top()
    bounds: Bounds = Field(
        default=[None, None], description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def check(self, tuner: Any) -> None:
        """Raise `FieldError` if the tuner cannot be combined with it."""
        if tuner.kind in UNSUPPORTED_TUNERS:
            raise FieldError(
                "stop_hopeless", f"must be left out for the tuner {tuner.kind}, {UNSUPPORTED_TUNERS[tuner.kind]}"
            )
        if getattr(tuner, "rung_value", None) is not None:
            why = "curves are predicted from values before cooldowns, and rungs have those after"
            raise FieldError("stop_hopeless", f"must be left out beside tuner.rung_value: {why}")
        end = getattr(tuner, "max_steps", None)
        if end is not None and self.max_steps is not None:
            raise FieldError("stop_hopeless.max_steps", "must be left out: the tuner has max_steps of its own")
        if end is None and self.max_steps is None:
            raise FieldError("stop_hopeless.max_steps", "is missing: the number of steps at the end, of whole trials")
        check_bounds(self.bounds, "stop_hopeless.bounds")

    def end(self, tuner: Any) -> int:
        """The step at which predicted values are compared."""
        own: int | None = getattr(tuner, "max_steps", None)
        return own or self.max_steps or 0
