"""Tuners by successive halving: the best of each rung go on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stagetree.spec.errors import FieldError
from stagetree.spec.fields import (
    Bounds,
    Count,
    Factor,
    Rate,
    check_bounds,
    common,
    finish_best_field,
    max_steps_field,
    min_steps_field,
    num_trials_field,
    reduction_factor_field,
)
from stagetree.spec.rungs import log_floor, rung_steps, rungs_down_from
from stagetree.spec.tuners.base import SamplingTuner

MAX_RUNGS = 5
"""How many rungs asynchronous Hyperband has at most, unless it is told the lowest (ASHA paper, §5.1)."""


class ShaTuner(SamplingTuner):
    """Synchronous successive halving: `num_trials` configurations, of which the best 1/eta go on from each rung."""

    kind: Literal["sha"] = "sha"
    num_trials: Count = num_trials_field()
    min_steps: Count = min_steps_field()
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")
    finish_best: Count | None = finish_best_field()

    def check_steps(self) -> None:
        """As the ASHA paper asserts, Algorithm 1: at least one configuration must be allocated `max_steps`."""
        super().check_steps()
        least, steps = 1, self.min_steps * self.reduction_factor ** (self.early_stopping_rate + 1)
        while steps <= self.max_steps:
            least, steps = least * self.reduction_factor, steps * self.reduction_factor
        if self.num_trials < least:
            raise FieldError(
                "tuner.num_trials",
                f"must be at least {least}, so that one is trained for max_steps, got {self.num_trials}",
            )


class AshaTuner(SamplingTuner):
    """Asynchronous successive halving. Without `max_steps`, trials may climb forever (infinite horizon)."""

    kind: Literal["asha"] = "asha"
    type: Literal["promotion", "stopping"] = Field(
        default="promotion", description="promotion (trials wait at their rung) or stopping (they go on or end)"
    )
    num_trials: Count = num_trials_field()
    min_steps: Count = min_steps_field()
    max_steps: Count | None = common("max_steps", "the number of steps at the top rung, at least 1", default=None)
    reduction_factor: Factor = reduction_factor_field()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")
    brackets: Count = Field(
        default=1, description="how many brackets, at least 1: with more than one it is asynchronous Hyperband"
    )
    promote_by: Literal["result", "predicted"] | None = Field(
        default=None,
        description="result (the default) or predicted, the value foretold at max_steps: what trials are ranked by",
    )
    bounds: Bounds | None = Field(
        default=None, description="a list of the least and the greatest value of the metric, null if unknown"
    )
    finish_best: Count | None = finish_best_field()

    def ladders(self) -> list[list[int]]:
        """The steps of the rungs of each bracket, the most aggressive first."""
        rungs = rung_steps(self.min_steps, self.max_steps, self.reduction_factor, self.early_stopping_rate)
        return [rungs[s:] for s in range(min(self.brackets, len(rungs)))]

    def check_steps(self) -> None:
        super().check_steps()
        if self.finish_best is not None and self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: finish_best needs the number of steps at the top rung")
        if self.type == "stopping" and self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: stopping needs the number of steps at the top rung")
        if self.brackets > 1 and self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: brackets need the number of steps at the top rung")
        if self.brackets > 1 and self.type == "stopping":
            raise FieldError("tuner.brackets", f"must be 1 for the type stopping, got {self.brackets}")
        if self.promote_by == "predicted":
            self._check_predicted()
        elif self.bounds is not None:
            raise FieldError("tuner.bounds", "must be left out, but where promote_by is predicted")

    def _check_predicted(self) -> None:
        if self.type == "stopping" or self.brackets > 1:
            raise FieldError("tuner.promote_by", "must be result, but for the type promotion with one bracket")
        if self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: the value that is foretold is that at the top rung")
        check_bounds(self.bounds or [None, None], "tuner.bounds")


class HyperbandTuner(SamplingTuner):
    """Every bracket of successive halving; how many configurations that is follows from the steps."""

    kind: Literal["hyperband"] = "hyperband"
    min_steps: Count = min_steps_field(default=1)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = common(
        "reduction_factor", "a whole number of at least 2: one of so many goes on from a rung", default=3
    )
    brackets: Count | None = Field(default=None, description="how many brackets, the most aggressive first")
    loops: Count = Field(default=1, description="how often all brackets are gone through, at least 1")
    finish_best: Count | None = finish_best_field()

    def widths(self) -> list[int]:
        """How many configurations each bracket begins with, the most aggressive first (Hyperband, Algorithm 1)."""
        s_max, eta = 0, self.reduction_factor
        while self.min_steps * eta ** (s_max + 1) <= self.max_steps:
            s_max += 1
        brackets = range(min(self.brackets or s_max + 1, s_max + 1))
        return [-(-(s_max + 1) * eta ** (s_max - s) // (s_max - s + 1)) for s in brackets]


class AsyncHyperbandTuner(SamplingTuner):
    """ASHA in several brackets. Without `min_steps` there are at most five rungs."""

    kind: Literal["async_hyperband"] = "async_hyperband"
    num_trials: Count = num_trials_field()
    min_steps: Count | None = min_steps_field(default=None)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    brackets: Count = Field(default=3, description="how many brackets, the most aggressive first")
    finish_best: Count | None = finish_best_field()

    def ladders(self) -> list[list[int]]:
        """The steps of the rungs of each bracket, the most aggressive first."""
        rungs = log_floor(self.max_steps, self.min_steps or 1, self.reduction_factor) + 1
        rungs = rungs if self.min_steps else min(rungs, MAX_RUNGS)
        brackets = range(min(self.brackets, rungs))
        return [rungs_down_from(self.max_steps, rungs - s, self.reduction_factor) for s in brackets]
