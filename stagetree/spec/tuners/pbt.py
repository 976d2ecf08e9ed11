"""Population based training (Jaderberg et al. 2017)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.sequences import did_you_mean
from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Count, aliased, max_steps_field
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy

MAX_DRAWS = 10
"""A population begins after sampling this many times its size, even if too few configurations beat `chance`."""


class PbtTuner(SamplingTuner):
    """Population based training: every `ready_steps`, the worst trials copy the best and perturb their values."""

    kind: Literal["pbt"] = "pbt"
    population_size: Annotated[int, Field(ge=2)] = aliased(
        "population_size", "the number of trials trained side by side, at least 2", default=20
    )
    ready_steps: Count = aliased("ready_steps", "the number of steps between generations, at least 1")
    max_steps: Count = max_steps_field()
    quantile: float = aliased(
        "quantile", "a number above 0 and up to 0.5: the share that is replaced", default=0.2, gt=0, le=0.5
    )
    resample_probability: float = Field(default=0.25, ge=0, le=1, description="a number from 0 to 1")
    factors: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)] = Field(
        default=[1.2, 0.8], description="a list of at least one number above 0: by what numbers are perturbed"
    )
    populations: Count = Field(
        default=1, description="how many populations at most, at least 1: another begins where slots would be idle"
    )
    chance: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="a number: what guessing reaches; configurations are sampled until half of them do better",
    )
    fixed: list[str] = Field(
        default=[],
        description="a list of hyper-parameters that never change during training, such as those of the architecture",
    )

    def check_study(self, spec: TunedStudy) -> None:
        if self.ready_steps > self.max_steps:
            raise FieldError(
                "tuner.ready_steps", f"must not be more than max_steps, {self.max_steps}, got {self.ready_steps}"
            )
        for name in sorted(spec.search_space.parents() - set(self.fixed)):
            raise FieldError("tuner.fixed", f"must hold {name}: whether others exist depends on it")
        for name, others in sorted(spec.search_space.references.items()):
            for each in sorted({name, *others} - set(self.fixed)):
                raise FieldError("tuner.fixed", f"must hold {each}: steps of {name} follow from {', '.join(others)}")
        for number, name in enumerate(self.fixed):
            if name not in (spec.space or {}):
                names = list(spec.space or {})
                raise FieldError(
                    f"tuner.fixed[{number}]",
                    f"must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}",
                )
