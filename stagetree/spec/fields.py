"""The types of a study's fields, fields that several tuners share, and error messages for both.

Every description completes the sentences "must be ..." and "is missing: ...". The `as_*` functions validate one value:
they return it in the form that is stored, or raise `SequenceError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from stagetree.limits import LANES, MOST_LANES
from stagetree.sequences import SequenceError, needs_length, parse
from stagetree.space import canonical, plain, read_entry
from stagetree.space.where import WhereError
from stagetree.spec.errors import (
    FieldError,
    Problem,
    SpecError,
    first_problems,
    join_path,
    shorten,
    trainer_name_hint,
    unknown_field_message,
)

MOST_LISTED = 1000
"""How many steps a study may list."""


def as_json(value: Any) -> Any:
    """The value as JSON. Whole numbers and strings are kept as they are."""
    value = plain(value)
    _check_json(value, "")
    return value


def _check_json(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise SequenceError(path, f"must have strings for keys, got {name!r}")
            _check_json(item, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_json(item, f"{path}[{number}]")
    elif not isinstance(value, bool | int | float | str | None) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise SequenceError(
            path, f"must be a finite number, a string, true, false, null, a list or an object, got {value!r}"
        )


def as_sequence(value: Any) -> Any:
    """The JSON of a sequence, after checking that it is valid."""
    value = as_json(value)
    parse(value)
    return value


def as_entry(value: Any) -> Any:
    """The JSON of an entry of a space, after checking that it is valid."""
    value = canonical(as_json(value))
    is_end = isinstance(value, Mapping) and value.keys() == {"end"}  # of `max_steps`: the space knows it
    if not is_end:
        read_entry(value, lengths=() if needs_length(value) else (None,))
    return value


def as_named(value: Any) -> Any:
    """A non-empty mapping by hyper-parameter."""
    if (isinstance(value, Mapping) and not all(value)) or value == {}:
        raise SequenceError("", f"must name at least one hyper-parameter, by strings that are not empty, got {value!r}")
    return value


def as_width(value: Any) -> Any:
    """The lanes of a pack: true for the usual number, false for none, "auto" for the fastest."""
    if isinstance(value, bool):
        return LANES if value else 0
    if value == "auto" or (isinstance(value, int) and 0 <= value <= MOST_LANES):
        return value
    raise SequenceError("", f"must be true, auto or a whole number from 0 to {MOST_LANES}, got {shorten(value)}")


def as_where(value: Any) -> Any:
    """An expression, or in Python a function."""
    if value is None or isinstance(value, str) or callable(value):
        return value
    raise WhereError(f"must be an expression over the space's hyper-parameters, in a string, got {shorten(value)}")


def as_target(value: Any) -> Any:
    """A finite number or a list of them."""
    if value is None:
        return None
    for number in value if isinstance(value, list) and value else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise SequenceError("", f"must be a number, or a list of at least one number, got {shorten(value)}")
    return value


def as_sink(value: str) -> str:
    """A sink address that a study may use."""
    from stagetree.sinks import SinkError  # not on Windows, where a study file may be written
    from stagetree.sinks.addresses import check_of_study

    try:
        check_of_study(value)
    except SinkError as error:
        raise SequenceError("", str(error)) from None
    return value


Json = Annotated[Any, AfterValidator(as_json)]
Entries = Annotated[dict[str, Annotated[Any, AfterValidator(as_entry)]], BeforeValidator(as_named)]
Sequences = Annotated[dict[str, Annotated[Any, AfterValidator(as_sequence)]], BeforeValidator(as_named)]
Sinks = list[Annotated[str, AfterValidator(as_sink)]]
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
Count = Annotated[int, Field(ge=1)]
Restarts = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Steps = Annotated[list[Count], Field(max_length=MOST_LISTED), AfterValidator(lambda steps: sorted(set(steps)))]
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
    "num_trials": ("num_samples", "n_trials"),
    "sampling_seed": ("seed",),
    "first": ("points_to_evaluate",),
    "population_size": ("num_trials", "num_samples", "n_trials"),
    "ready_steps": ("perturbation_interval",),
    "quantile": ("quantile_fraction",),
    "interval": ("evaluation_interval",),
    "epsilon": ("slack_factor",),
    "min_trials": ("min_samples_required",),
    "boundary": ("interval", "evaluation_interval"),
    "max_time": ("time_budget_s", "timeout"),
    "mode": ("direction",),
}


def aliased(name: str, description: str, **options: Any) -> Any:
    """A field that several tuners share, which also accepts its names in other tools."""
    return Field(description=description, validation_alias=AliasChoices(name, *OTHER_NAMES[name]), **options)


def max_steps_field(**options: Any) -> Any:
    return aliased("max_steps", "the number of steps to train each trial for, at least 1", **options)


def min_steps_field(**options: Any) -> Any:
    return aliased("min_steps", "the number of steps at the lowest rung, at least 1", **options)


def num_trials_field() -> Any:
    return aliased("num_trials", "the number of configurations to try, at least 1")


def reduction_factor_field(default: int = 4) -> Any:
    text = "a whole number of at least 2: one of this many is promoted from a rung"
    return aliased("reduction_factor", text, default=default)


def sampling_seed_field() -> Any:
    return aliased(
        "sampling_seed",
        "a whole number from 0 to 4294967295, from which configurations are sampled; by default another for each study",
        default=None,
    )


def distinct_field() -> Any:
    return Field(
        default=True,
        description="true (the default) or false: whether no configuration is sampled twice while another one is left",
    )


def finish_best_field() -> Any:
    return Field(
        default=None,
        description="a number of trials, at least 1: at the end, the best of the trials that ended early are trained "
        "to max_steps, up to this number",
    )


def first_field() -> Any:
    return aliased("first", "a list of configurations to try before any are sampled", default=None)


def check_bounds(bounds: Sequence[float | None], field: str) -> None:
    """Raise `FieldError` if the lower bound of the metric is not below the upper one."""
    least, greatest = bounds
    if least is not None and greatest is not None and not least < greatest:
        raise FieldError(field, f"must begin with the lesser one, got {least:g} and {greatest:g}")


class SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _convert_numpy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: plain(value) if hasattr(value, "tolist") else value for name, value in values.items()}


class SpecPart(SpecModel):
    """A part of a study that can be built separately in Python. Raises `SpecError` with all problems."""

    place: ClassVar[str] = ""
    """Its field in the study."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            details = error.errors(include_url=False)
            raise SpecError(first_problems(_problem(detail, type(self)) for detail in details)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # within a study, the study raises the error


def _problem(detail: ErrorDetails, part: type[SpecPart]) -> Problem:
    loc, error = detail["loc"], detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return Problem(join_path(part.place, *loc, error.field), error.problem)
    owner, names = _inside(part, loc)
    path = join_path(part.place, *(each for each in loc if each != "[key]"))
    return Problem(path, sentence(detail, owner, str(names[0])))


def _inside(part: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a location belongs to, looking into lists of models, and the rest of the path in it."""
    if len(loc) > 1 and isinstance(loc[1], str) and (inside := part_of(part, str(loc[0]))) is not None:
        return inside, loc[1:]
    field = part.model_fields.get(str(loc[0]))
    inner = next(iter(get_args(field.annotation)), None) if field else None
    if len(loc) > 2 and isinstance(inner, type) and issubclass(inner, BaseModel):
        return inner, loc[2:]
    return part, loc


def part_of(owner: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a field that holds a single object, or None."""
    kinds = get_args(owner.model_fields[name].annotation) if name in owner.model_fields else ()
    parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return parts[0] if len(parts) == 1 else None


def sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    """What would be right for the field `name` of a model."""
    got = shorten(detail["input"]) + _whole_hint(detail)
    own_first = sorted(owner.model_fields, key=lambda field: field not in owner.__annotations__)
    fields = [field for field in own_first if field != "kind"]
    match detail["type"]:
        case "extra_forbidden" if field := next((field for field in fields if name in OTHER_NAMES.get(field, ())), ""):
            return f"is another name for {field}, which is there already"
        case "extra_forbidden":
            return unknown_field_message(name, fields)
        case "missing":
            return f"is missing: {_description(owner, name)}"
        case "model_type" if name == "trials":
            return f"must be an object with hp and steps, got {got}"
        case _ if name == "trainer" and (problem := trainer_name_hint(detail["input"])):
            return problem
        case _ if detail["loc"][-1] == "[key]":
            return f"must be a string, as all keys, got {got}"
        case _:
            return f"must be {_description(owner, name)}, got {got}"


def _whole_hint(detail: ErrorDetails) -> str:
    """How to write a whole number that was given as a float or a text."""
    given = detail["input"]
    if detail["type"] != "int_type" or not isinstance(given, float | str):
        return ""
    if isinstance(given, str):
        return f": write {given}, without quotes" if given.isdigit() else ""
    return f": write {int(given)}" if given.is_integer() else ": it must be a whole number"


def _description(owner: type[BaseModel], name: str) -> str:
    for field, info in owner.model_fields.items():
        if name in (field, *OTHER_NAMES.get(field, ())):
            return str(info.description)
    raise AssertionError(f"{owner.__name__} has no field {name}")
