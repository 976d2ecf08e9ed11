"""The types of a study's fields, and the fields that tuners share.

Every field's description completes the sentences "must be ..." and "is missing: ...".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stagetree.limits import MOST_LANES
from stagetree.space import plain
from stagetree.spec.errors import FieldError
from stagetree.spec.values import as_entry, as_json, as_named, as_sequence, as_sink, as_width

Json = Annotated[Any, AfterValidator(as_json)]
Entries = Annotated[dict[str, Annotated[Any, AfterValidator(as_entry)]], BeforeValidator(as_named)]
Sequences = Annotated[dict[str, Annotated[Any, AfterValidator(as_sequence)]], BeforeValidator(as_named)]
Sinks = list[Annotated[str, AfterValidator(as_sink)]]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1)]
Restarts = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Width = Annotated[Annotated[int, Field(ge=0, le=MOST_LANES)] | Literal["auto"], BeforeValidator(as_width)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Factor = Annotated[int, Field(ge=2)]
Rate = Annotated[int, Field(ge=0, le=64)]
Bounds = Annotated[list[float | None], Field(min_length=2, max_length=2)]

OTHER_NAMES = {
    "max_steps": ("max_t", "max_resource"),
    "min_steps": ("grace_period", "min_resource"),
    "reduction_factor": ("eta",),
    "num_trials": ("num_samples",),
    "sampling_seed": ("seed",),
    "first": ("points_to_evaluate",),
    "population_size": ("num_trials", "num_samples"),
    "ready_steps": ("perturbation_interval",),
    "quantile": ("quantile_fraction",),
    "interval": ("evaluation_interval",),
    "epsilon": ("slack_factor",),
    "min_trials": ("min_samples_required",),
    "boundary": ("interval", "evaluation_interval"),
    "max_time": ("time_budget_s",),
}


def common(name: str, description: str, **options: Any) -> Any:
    """A field that tuners share, under the names that people know it by from elsewhere."""
    return Field(description=description, validation_alias=AliasChoices(name, *OTHER_NAMES[name]), **options)


def max_steps_field() -> Any:
    return common("max_steps", "the number of steps to train each trial for, at least 1")


def min_steps_field(**options: Any) -> Any:
    return common("min_steps", "the number of steps at the lowest rung, at least 1", **options)


def num_trials_field() -> Any:
    return common("num_trials", "the number of configurations to try, at least 1")


def reduction_factor_field() -> Any:
    return common("reduction_factor", "a whole number of at least 2: one of so many goes on from a rung", default=4)


def sampling_seed_field() -> Any:
    return common(
        "sampling_seed",
        "a whole number from 0 to 4294967295, from which configurations are drawn; by default another for each study",
        default=None,
    )


def distinct_field() -> Any:
    return Field(
        default=None,
        description="true, the default of a new study, or false: whether no configuration is drawn twice while "
        "another one is left",
    )


def finish_best_field() -> Any:
    return Field(
        default=None,
        description="how many trials, at least 1: at the end so many of those that ended early, the best, are trained "
        "to max_steps",
    )


def first_field() -> Any:
    return common("first", "a list of configurations to try before any are drawn", default=None)


def keep_top_field() -> Any:
    return Field(
        default=1 / 3,
        ge=0,
        le=1,
        description="a number from 0 to 1: the best part of the trials that came to a step, which what is foretold "
        "never ends there",
    )


def check_bounds(bounds: Sequence[float | None], field: str) -> None:
    """Raise `FieldError` if the least value that a metric can have is not less than the greatest."""
    least, greatest = bounds
    if least is not None and greatest is not None and not least < greatest:
        raise FieldError(field, f"must begin with the lesser one, got {least:g} and {greatest:g}")


class SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _numbers_of_numpy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: plain(value) if hasattr(value, "tolist") else value for name, value in values.items()}
