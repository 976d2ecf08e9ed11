"""Tuners by successive halving, and the steps at which tuners decide.

These are rungs and brackets, and the boundaries of tuners that predict learning curves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
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

ENDLESS = 40
"""How many rungs there are without a highest one. No study reaches the last of them."""


def rung_steps(least: int, most: int | None, factor: int, early_stopping_rate: int = 0) -> list[int]:
    """The rungs of a bracket: r * eta^(s + k), with `most` as the last (r_i in Algorithm 1).

    If `most` is not a power of `factor` times `least`, one more rung at `most` ensures that the best trial is trained
    to the end. Without `most` (infinite horizon), there are `ENDLESS` rungs.
    """
    rungs = (least * factor ** (early_stopping_rate + rung) for rung in range(ENDLESS))
    return list(rungs) if most is None else [*(steps for steps in rungs if steps < most), most]


def rungs_down_from(most: int, rungs: int, factor: int) -> list[int]:
    """`rungs` rungs, counted from the top: R / eta^k, rounded down (Hyperband, Algorithm 1: R eta^-s)."""
    return [most // factor**rung for rung in reversed(range(rungs))]


def log_floor(most: int, least: int, factor: int) -> int:
    """floor(log_factor(most / least)), exact."""
    exponent = 0
    while least * factor ** (exponent + 1) <= most:
        exponent += 1
    return exponent


def bracket_sizes(trials: int, rungs: int, eta: int, brackets: int) -> list[int]:
    """How many of the trials each bracket gets: inversely to its mean steps per configuration (ASHA paper, §5.1).

    With B = `rungs`, bracket s has B - s rungs and so takes (B - s) / eta^(B - 1 - s) of `max_steps` per configuration.
    Trials are assigned one by one by Balinski and Young's quota method: to the neediest bracket among those not ahead
    of their exact share. No size is off by one or more, and none decreases when trials are added, as can happen with
    largest remainders.
    """
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    whole, counts = sum(inverse), [0] * brackets
    for number in range(1, trials + 1):
        behind = [
            (inverse[s] / (counts[s] + 1), -s) for s in range(brackets) if counts[s] * whole < number * inverse[s]
        ]
        counts[-max(behind)[1]] += 1
    return counts


def guaranteed_steps(trials: int, ladders: Sequence[Sequence[int]], eta: int) -> int:
    """The steps that at least one trial of ASHA reaches for any results, if none fails.

    Of n trials at a rung, at least floor(n / eta) are promoted. In one bracket that makes rung floor(log_eta(n)),
    counted from 0.
    """
    widths = bracket_sizes(trials, len(ladders[0]), eta, len(ladders))
    climbed = ((ladder, log_floor(width, 1, eta)) for ladder, width in zip(ladders, widths, strict=True) if width)
    return max(ladder[min(rung, len(ladder) - 1)] for ladder, rung in climbed)


BOUNDARIES = 10
"""The default number of boundaries of a trial: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""

MIN_EVALUATIONS = 4
"""With fewer evaluations, a curve has no shape yet and its prediction is little more than its current value. (The
papers wait for ten or thirty.)
"""


def boundary_steps(chosen: int | None, most: int) -> int:
    """The steps between two decisions: as chosen, or by default."""
    return chosen or -(-most // BOUNDARIES)


def requested_steps(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps at which trials are requested: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})


def max_evaluations(boundary: int, eval_every: int | None, most: int) -> int:
    """How many evaluations a trial has at its last decision; 0 if there is none before its end."""
    last = (most - 1) // boundary * boundary
    return sum(step <= last for step in requested_steps(boundary, eval_every, most))


MAX_RUNGS = 5
"""The maximum number of rungs of asynchronous Hyperband without `min_steps` (ASHA paper, §5.1)."""


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
