"""Tuners by successive halving: the best of each rung go on.

And the steps at which tuners decide: rungs and brackets, and the boundaries of tuners that predict curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

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
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy
from stagetree.spec.tuners.rungs import RungValue

ENDLESS = 40
"""How many rungs there are without a highest: no study climbs them all."""


def rung_steps(least: int, most: int | None, factor: int, early_stopping_rate: int = 0) -> list[int]:
    """The steps at which the rungs of a bracket stand: r * eta^(s + k), and `most` for the last (r_i in Algorithm 1).

    Where `most` is no power of `factor` times `least`, there is one more rung at `most`, so that the best trial is
    always trained to the end. Without `most` (infinite horizon) the rungs have no end.
    """
    rungs = (least * factor ** (early_stopping_rate + rung) for rung in range(ENDLESS))
    return list(rungs) if most is None else [*(steps for steps in rungs if steps < most), most]


def rungs_down_from(most: int, rungs: int, factor: int) -> list[int]:
    """The steps of so many rungs, counted from the top: R / eta^k, rounded down (Hyperband, Algorithm 1: R eta^-s)."""
    return [most // factor**rung for rung in reversed(range(rungs))]


def log_floor(most: int, least: int, factor: int) -> int:
    """floor(log_factor(most / least)), exact."""
    exponent = 0
    while least * factor ** (exponent + 1) <= most:
        exponent += 1
    return exponent


def shares(trials: int, rungs: int, eta: int, brackets: int) -> list[int]:
    """How many of the trials each bracket gets: inversely to its average steps a configuration (ASHA paper, §5.1).

    With B = `rungs`, bracket s has B - s rungs and so takes (B - s) / eta^(B - 1 - s) of `max_steps` a configuration.
    Each next trial goes where it is needed most, of the brackets that are not ahead of their exact share (Balinski and
    Young's quota method): so no share is off by one, and none shrinks when there are more trials, as it may where
    remainders are compared.
    """
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    whole, counts = sum(inverse), [0] * brackets
    for number in range(1, trials + 1):
        behind = [
            (inverse[s] / (counts[s] + 1), -s) for s in range(brackets) if counts[s] * whole < number * inverse[s]
        ]
        counts[-max(behind)[1]] += 1
    return counts


def sure_steps(trials: int, ladders: Sequence[Sequence[int]], eta: int) -> int:
    """The steps that some trial of ASHA on these brackets comes to, whatever the results, if none fails.

    Of n trials at a rung, floor(n / eta) or more go on; more only where trials that came late are better than those
    that went on before them. In one bracket it is the rung floor(log_eta(n)), from 0.
    """
    widths = shares(trials, len(ladders[0]), eta, len(ladders))
    climbed = ((ladder, log_floor(width, 1, eta)) for ladder, width in zip(ladders, widths, strict=True) if width)
    return max(ladder[min(rung, len(ladder) - 1)] for ladder, rung in climbed)


BOUNDARIES = 10
"""Of a trial where the study names no boundary: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""

LEAST_POINTS = 4
"""A curve with fewer evaluations has no shape yet: what is foretold of it is hardly more than what it is now. (In the
papers there are ten, or thirty, before anything is decided.)"""


def boundary_of(chosen: int | None, most: int) -> int:
    """The steps between two decisions: those that were chosen, if any."""
    return chosen or -(-most // BOUNDARIES)


def steps_asked(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps that trials are asked for: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})


def most_points(boundary: int, eval_every: int | None, most: int) -> int:
    """How many evaluations a trial has had when it comes to its last decision; 0 where there is none before its end."""
    last = (most - 1) // boundary * boundary
    return sum(step <= last for step in steps_asked(boundary, eval_every, most))


MAX_RUNGS = 5
"""How many rungs asynchronous Hyperband has at most, unless it is told the lowest (ASHA paper, §5.1)."""


class HalvingTuner(SamplingTuner):
    """What tuners have in common that compare trials at rungs."""

    finish_best: Count | None = finish_best_field()
    rung_value: RungValue | None = Field(
        default=None,
        description="an object with cooldown, and any of shape, final and sequence: trials are ranked by what a "
        "cooldown comes to that is branched off them at each rung",
    )

    def check_study(self, spec: TunedStudy) -> None:
        if self.rung_value is not None:
            ends = (getattr(self, name, None) for name in ("min_steps", "max_steps"))
            self.rung_value.check(spec, [step for step in ends if step is not None])


class ShaTuner(HalvingTuner):
    """Synchronous successive halving: `num_trials` configurations, of which the best 1/eta go on from each rung."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["sha"] = "sha"
    num_trials: Count = num_trials_field()
    min_steps: Count = min_steps_field()
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")

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


class AshaTuner(HalvingTuner):
    """Asynchronous successive halving. Without `max_steps`, trials may climb forever (infinite horizon)."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["asha"] = "asha"
    type: Literal["promotion", "stopping"] = Field(
        default="promotion", description="promotion (trials wait at their rung) or stopping (they continue or end)"
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
        if self.rung_value is not None:
            raise FieldError(
                "tuner.rung_value", "must be left out where promote_by is predicted, which ranks otherwise"
            )
        check_bounds(self.bounds or [None, None], "tuner.bounds")


class HyperbandTuner(HalvingTuner):
    """Every bracket of successive halving; how many configurations that is follows from the steps."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["hyperband"] = "hyperband"
    min_steps: Count = min_steps_field(default=1)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = common(
        "reduction_factor", "a whole number of at least 2: one of this many is promoted from a rung", default=3
    )
    brackets: Count | None = Field(default=None, description="how many brackets, the most aggressive first")
    loops: Count = Field(default=1, description="how often all brackets are gone through, at least 1")

    def widths(self) -> list[int]:
        """How many configurations each bracket begins with, the most aggressive first (Hyperband, Algorithm 1)."""
        s_max, eta = self._most_promotions(), self.reduction_factor
        return [-(-(s_max + 1) * eta ** (s_max - s) // (s_max - s + 1)) for s in self._numbers()]

    def ladders(self) -> list[list[int]]:
        """The steps of the rungs of each bracket, in that order."""
        rungs = self._most_promotions() + 1
        return [rungs_down_from(self.max_steps, rungs - s, self.reduction_factor) for s in self._numbers()]

    def _most_promotions(self) -> int:
        return log_floor(self.max_steps, self.min_steps, self.reduction_factor)

    def _numbers(self) -> range:
        most = self._most_promotions() + 1
        return range(min(self.brackets or most, most))


class AsyncHyperbandTuner(HalvingTuner):
    """ASHA in several brackets. Without `min_steps` there are at most five rungs."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["async_hyperband"] = "async_hyperband"
    num_trials: Count = num_trials_field()
    min_steps: Count | None = min_steps_field(default=None)
    max_steps: Count = max_steps_field()
    reduction_factor: Factor = reduction_factor_field()
    brackets: Count = Field(default=3, description="how many brackets, the most aggressive first")

    def ladders(self) -> list[list[int]]:
        """The steps of the rungs of each bracket, the most aggressive first."""
        rungs = log_floor(self.max_steps, self.min_steps or 1, self.reduction_factor) + 1
        rungs = rungs if self.min_steps else min(rungs, MAX_RUNGS)
        brackets = range(min(self.brackets, rungs))
        return [rungs_down_from(self.max_steps, rungs - s, self.reduction_factor) for s in brackets]
