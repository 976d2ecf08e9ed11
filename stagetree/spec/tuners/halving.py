"""Tuners by successive halving: the best trials of each rung are promoted."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from stagetree.spec.errors import FieldError
from stagetree.spec.fields import (
    Bounds,
    Count,
    Factor,
    Rate,
    aliased,
    check_bounds,
    finish_best_field,
    max_steps_field,
    min_steps_field,
    num_trials_field,
    reduction_factor_field,
)
from stagetree.spec.tuners.base import SamplerName, SamplingTuner, TunedStudy, sampler_field
from stagetree.spec.tuners.rung_values import AnyRungValue
from stagetree.spec.tuners.rungs import MAX_RUNGS, log_floor, rung_steps, rungs_down_from


class GuidedStudy(TunedStudy, Protocol):
    """The fields of a study that its default sampler depends on."""

    @property
    def metrics(self) -> list[Any]: ...
    @property
    def constraints(self) -> list[str]: ...


class HalvingTuner(SamplingTuner):
    """The base class of tuners that compare trials at rungs."""

    finish_best: Count | None = finish_best_field()
    rung_value: AnyRungValue | None = Field(
        default=None,
        description="an object with cooldown, and any of shape, final and sequence: trials are ranked by what a "
        "cooldown comes to that is branched off them at each rung; or with merge, and any of window and weights: they "
        "are ranked by the mean of their last states",
    )

    ties: Literal["seed", "number"] | None = Field(
        default=None,
        description="seed (the default) or number: whether equal results at a rung are in the order of a draw from "
        "sampling_seed, or of their trials, as in 0.1.0",
    )

    @abstractmethod
    def ladders(self) -> list[list[int]]:
        """The rungs of each bracket, the most aggressive first."""

    def check_study(self, spec: TunedStudy) -> None:
        if self.rung_value is not None:
            has_end = getattr(self, "max_steps", None) is not None
            self.rung_value.check(spec, [rungs if has_end else rungs[:2] for rungs in self.ladders()])


class ShaTuner(HalvingTuner):
    """Synchronous successive halving: of `num_trials` configurations, each rung promotes the best 1/eta."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["sha"] = "sha"
    num_trials: Count = num_trials_field()
    min_steps: Count = min_steps_field()
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")

    def ladders(self) -> list[list[int]]:
        return [rung_steps(self.min_steps, self.max_steps, self.reduction_factor, self.early_stopping_rate)]

    def check_steps(self) -> None:
        """Check the assertion of Algorithm 1 in the ASHA paper: at least one configuration must reach `max_steps`."""
        super().check_steps()
        least, steps = 1, self.min_steps * self.reduction_factor ** (self.early_stopping_rate + 1)
        while steps <= self.max_steps:
            least, steps = least * self.reduction_factor, steps * self.reduction_factor
        if self.num_trials < least:
            raise FieldError(
                "tuner.num_trials",
                f"must be at least {least}, so that one is trained for max_steps, got {self.num_trials}",
            )


DEFAULT_SAMPLER, MOST_MODELLED = "trunks", 200
"""The sampler by default where results can guide it, and up to how many trials of a study."""


class AsynchronousTuner(HalvingTuner):
    """The base class of tuners that ask for a trial when a slot has room for it, so that samplers know results."""

    takes_objectives: ClassVar[bool] = True
    num_trials: Count = num_trials_field()
    sampler: SamplerName | None = sampler_field(
        default=None,
        text=f"; by default {DEFAULT_SAMPLER}, but random with several metrics, constraints, more than {MOST_MODELLED} "
        "trials, or as many trials as configurations",
    )

    def default_sampler(self, spec: GuidedStudy) -> str:
        """The sampler of a study that names none: a model, where results can guide it and there is a choice."""
        ways = spec.search_space.ways()
        has_choice = ways is None or ways > self.num_trials
        is_few = self.num_trials <= MOST_MODELLED
        return DEFAULT_SAMPLER if has_choice and is_few and not spec.metrics and not spec.constraints else "random"


class AshaTuner(AsynchronousTuner):
    """Asynchronous successive halving. Without `max_steps`, trials may climb forever (infinite horizon)."""

    kind: Literal["asha"] = "asha"
    type: Literal["promotion", "stopping"] = Field(
        default="promotion", description="promotion (trials wait at their rung) or stopping (they continue or end)"
    )
    min_steps: Count = min_steps_field()
    max_steps: Count | None = aliased("max_steps", "the number of steps at the top rung, at least 1", default=None)
    reduction_factor: Factor = reduction_factor_field()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")
    brackets: Count = Field(
        default=1, description="how many brackets, at least 1: with more than one it is asynchronous Hyperband"
    )
    promote_by: Literal["result", "predicted"] | None = Field(
        default=None,
        description="result (the default) or predicted, the value predicted at max_steps: what trials are ranked by",
    )
    bounds: Bounds | None = Field(
        default=None, description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def ladders(self) -> list[list[int]]:
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
            raise FieldError("tuner.max_steps", "is missing: the predicted value is that at the top rung")
        if self.rung_value is not None:
            raise FieldError(
                "tuner.rung_value", "must be left out where promote_by is predicted, which ranks otherwise"
            )
        check_bounds(self.bounds or [None, None], "tuner.bounds")


class HyperbandTuner(HalvingTuner):
    """Every bracket of successive halving. The steps determine the number of configurations."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["hyperband"] = "hyperband"
    min_steps: Count = min_steps_field(default=1)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field(default=3)
    brackets: Count | None = Field(default=None, description="how many brackets, the most aggressive first")
    loops: Count = Field(default=1, description="how often all brackets are gone through, at least 1")

    def widths(self) -> list[int]:
        """How many configurations each bracket begins with, the most aggressive first (Hyperband, Algorithm 1)."""
        s_max, eta = self._most_promotions(), self.reduction_factor
        return [-(-(s_max + 1) * eta ** (s_max - s) // (s_max - s + 1)) for s in self._numbers()]

    def ladders(self) -> list[list[int]]:
        rungs = self._most_promotions() + 1
        return [rungs_down_from(self.max_steps, rungs - s, self.reduction_factor) for s in self._numbers()]

    def _most_promotions(self) -> int:
        return log_floor(self.max_steps, self.min_steps, self.reduction_factor)

    def _numbers(self) -> range:
        most = self._most_promotions() + 1
        return range(min(self.brackets or most, most))


class AsyncHyperbandTuner(AsynchronousTuner):
    """ASHA in several brackets. Without `min_steps` there are at most five rungs."""

    kind: Literal["async_hyperband"] = "async_hyperband"
    min_steps: Count | None = min_steps_field(default=None)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    brackets: Count = Field(default=3, description="how many brackets, the most aggressive first")

    def ladders(self) -> list[list[int]]:
        rungs = log_floor(self.max_steps, self.min_steps or 1, self.reduction_factor) + 1
        rungs = rungs if self.min_steps else min(rungs, MAX_RUNGS)
        brackets = range(min(self.brackets, rungs))
        return [rungs_down_from(self.max_steps, rungs - s, self.reduction_factor) for s in brackets]
