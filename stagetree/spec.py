"""The study file and the body of `POST /studies`: one object, `StudySpec`, checked whole before anything runs.

>>> spec = StudySpec.from_dict({
...     "name": "demo", "trainer": "digits", "metric": "accuracy", "mode": "max",
...     "space": {"lr": [0.1, 0.01], "bs": 64}, "tuner": {"kind": "grid", "max_steps": 40},
... })
>>> [{name: sequence.at(0) for name, sequence in hp.items()} for hp in spec.configurations()]
[{'lr': 0.1, 'bs': 64}, {'lr': 0.01, 'bs': 64}]

What is wrong with a study file is one `SpecError`, with a `Problem` for each field that is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from stagetree.limits import LIMITS, Limits, check_size
from stagetree.sequences import Sequence, SequenceError, did_you_mean, parse
from stagetree.space import Space, plain, read_entry
from stagetree.where import Where, WhereError

__all__ = ["GridTuner", "Problem", "RandomTuner", "SpecError", "StudySpec", "TrialSpec", "TrialsTuner", "Tuner"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at `field`, a path such as `space.lr[1].gamma`, in a sentence that says what would be right."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class SpecError(ValueError):
    """A study that cannot be, with all its problems; `source` is the file they are in."""

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        super().__init__("\n".join(f"{source}: {problem}" if source else str(problem) for problem in problems))
        self.problems, self.source = problems, source


class FieldError(SequenceError):
    """A field outside the space, named in full."""


# --------------------------------------------------------------------------------------------------------------- types
# Every field's description completes the sentences "must be ..." and "is missing: ...".


def _json(value: Any) -> Any:
    """The JSON of a value, with whole numbers and strings left as they are."""
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


def _sequence(value: Any) -> Any:
    """The JSON of a sequence, after a look whether it is one."""
    value = _json(value)
    parse(value)
    return value


def _entry(value: Any) -> Any:
    """The JSON of one entry of a space, after a look whether it is one."""
    value = _json(value)
    read_entry(value)
    return value


def _named(value: Any) -> Any:
    """A mapping by hyper-parameter, which names at least one."""
    if (isinstance(value, Mapping) and not all(value)) or value == {}:
        raise SequenceError("", f"must name at least one hyper-parameter, by strings that are not empty, got {value!r}")
    return value


def _where(value: Any) -> Any:
    """An expression or, in Python, a function."""
    if value is None or isinstance(value, str) or callable(value):
        return value
    raise WhereError(f"must be an expression over the space's hyper-parameters, in a string, got {shown(value)}")


def _target(value: Any) -> Any:
    """A finite number, or some of them."""
    if value is None:
        return None
    for number in value if isinstance(value, list) and value else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise SequenceError("", f"must be a number, or a list of at least one number, got {shown(value)}")
    return value


_TARGET = float | list[float]
Json = Annotated[Any, AfterValidator(_json)]
Entries = Annotated[dict[str, Annotated[Any, AfterValidator(_entry)]], BeforeValidator(_named)]
Sequences = Annotated[dict[str, Annotated[Any, AfterValidator(_sequence)]], BeforeValidator(_named)]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1)]
Restarts = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

_OTHER_NAMES = {
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
    return Field(description=description, validation_alias=AliasChoices(name, *_OTHER_NAMES[name]), **options)


def _max_steps() -> Any:
    return common("max_steps", "the number of steps to train each trial for, at least 1")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _numbers_of_numpy(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: plain(value) if hasattr(value, "tolist") else value for name, value in values.items()}


# -------------------------------------------------------------------------------------------------------------- tuners


def _kind_is_required(schema: dict[str, Any]) -> None:
    """In Python a tuner knows its own kind; a study file must say it."""
    schema["required"] = ["kind", *schema.get("required", ())]


class TunerSpec(_Model):
    """What all tuners have in common. A new kind is a subclass with its own `kind`, added to `Tuner` below."""

    model_config = ConfigDict(json_schema_extra=_kind_is_required)
    needs_space: ClassVar[bool] = True

    def configurations(self, spec: StudySpec) -> Iterator[dict[str, Sequence]]:
        """The configurations this tuner begins with, in order."""
        raise NotImplementedError

    def check(self, spec: StudySpec) -> None:
        """Raise `SequenceError` if the tuner cannot work with the study's space."""
        next(self.configurations(spec))


class GridTuner(TunerSpec):
    """Trains every combination in the space for `max_steps`."""

    kind: Literal["grid"] = "grid"
    max_steps: Count = _max_steps()

    def configurations(self, spec: StudySpec) -> Iterator[dict[str, Sequence]]:
        return spec.search_space.grid()

    def check(self, spec: StudySpec) -> None:
        if next(self.configurations(spec), None) is None:
            raise WhereError("must let at least one combination of the space through, got none")


def _sampling_seed() -> Any:
    return common(
        "sampling_seed",
        "a whole number from 0 to 4294967295, from which configurations are drawn; by default another for each study",
        default=None,
    )


def _first() -> Any:
    return common("first", "a list of configurations to try before any are drawn", default=None)


class RandomTuner(TunerSpec):
    """Draws `num_trials` configurations and trains each for `max_steps`."""

    kind: Literal["random"] = "random"
    num_trials: Count = common("num_trials", "the number of configurations to draw, at least 1")
    max_steps: Count = _max_steps()
    sampling_seed: Seed | None = _sampling_seed()
    first: list[Sequences] | None = _first()

    def configurations(self, spec: StudySpec) -> Iterator[dict[str, Sequence]]:
        drawn = (spec.search_space.sample(spec.sampling_seed, number) for number in count())
        return islice(chain(spec.first, drawn), self.num_trials)


class TrialSpec(_Model):
    """One trial: a configuration, and for how many steps to train it."""

    hp: Sequences = Field(description="an object from hyper-parameter to sequence")
    steps: Count = Field(description="the number of steps to train for, at least 1")

    def configuration(self) -> dict[str, Sequence]:
        """The sequences of the trial."""
        return {name: parse(value) for name, value in self.hp.items()}


class TrialsTuner(TunerSpec):
    """Trains the trials it is given; the study has no space."""

    needs_space: ClassVar[bool] = False
    kind: Literal["trials"] = "trials"
    trials: list[TrialSpec] = Field(description="a list of at least one {hp: {...}, steps: n}", min_length=1)

    def configurations(self, spec: StudySpec) -> Iterator[dict[str, Sequence]]:
        return (trial.configuration() for trial in self.trials)


def _num_trials() -> Any:
    return common("num_trials", "the number of configurations to try, at least 1")


def _min_steps(**options: Any) -> Any:
    return common("min_steps", "the number of steps at the lowest rung, at least 1", **options)


def _reduction_factor() -> Any:
    return common("reduction_factor", "a whole number of at least 2: one of so many goes on from a rung", default=4)


Factor = Annotated[int, Field(ge=2)]
Rate = Annotated[int, Field(ge=0, le=64)]


class SamplingTuner(TunerSpec):
    """What tuners have in common that take configurations one by one from a sampler."""

    sampler: Literal["random", "grid", "sobol", "halton", "tpe", "cmaes", "gp"] = Field(
        default="random",
        description="random, grid, sobol, halton, tpe, cmaes or gp: where configurations come from",
    )
    sampling_seed: Seed | None = _sampling_seed()
    first: list[Sequences] | None = _first()

    def check(self, spec: StudySpec) -> None:
        if self.sampler != "grid":
            spec.search_space.sample(spec.sampling_seed, 0)
        elif next(spec.search_space.grid(), None) is None:
            raise WhereError("must let at least one combination of the space through, got none")
        self.check_steps()
        self.check_study(spec)

    def check_study(self, spec: StudySpec) -> None:
        """Raise `SequenceError` if the tuner cannot work with the rest of the study."""

    def check_steps(self) -> None:
        """Raise `SequenceError` if the rungs make no sense."""
        least, most = getattr(self, "min_steps", None), getattr(self, "max_steps", None)
        if least is not None and most is not None and least > most:
            raise FieldError("tuner.min_steps", f"must not be more than max_steps, {most}, got {least}")


class ShaTuner(SamplingTuner):
    """Synchronous successive halving: `num_trials` configurations, of which the best 1/eta go on from each rung."""

    kind: Literal["sha"] = "sha"
    num_trials: Count = _num_trials()
    min_steps: Count = _min_steps()
    max_steps: Count = _max_steps()
    reduction_factor: Factor = _reduction_factor()
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


class AshaTuner(SamplingTuner):
    """Asynchronous successive halving. Without `max_steps`, trials may climb for ever (infinite horizon)."""

    kind: Literal["asha"] = "asha"
    type: Literal["promotion", "stopping"] = Field(
        default="promotion", description="promotion (trials wait at their rung) or stopping (they go on or end)"
    )
    num_trials: Count = _num_trials()
    min_steps: Count = _min_steps()
    max_steps: Count | None = common("max_steps", "the number of steps at the top rung, at least 1", default=None)
    reduction_factor: Factor = _reduction_factor()
    early_stopping_rate: Rate = Field(default=0, description="a whole number from 0 to 64: s in the ASHA paper")
    brackets: Count = Field(
        default=1, description="how many brackets, at least 1: with more than one it is asynchronous Hyperband"
    )

    def check_steps(self) -> None:
        super().check_steps()
        if self.type == "stopping" and self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: stopping needs the number of steps at the top rung")
        if self.brackets > 1 and self.max_steps is None:
            raise FieldError("tuner.max_steps", "is missing: brackets need the number of steps at the top rung")
        if self.brackets > 1 and self.type == "stopping":
            raise FieldError("tuner.brackets", f"must be 1 for the type stopping, got {self.brackets}")


class HyperbandTuner(SamplingTuner):
    """Every bracket of successive halving; how many configurations that is follows from the steps."""

    kind: Literal["hyperband"] = "hyperband"
    min_steps: Count = _min_steps(default=1)
    max_steps: Count = _max_steps()
    reduction_factor: Factor = common(
        "reduction_factor", "a whole number of at least 2: one of so many goes on from a rung", default=3
    )
    brackets: Count | None = Field(default=None, description="how many brackets, the most aggressive first")
    loops: Count = Field(default=1, description="how often all brackets are gone through, at least 1")

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
    num_trials: Count = _num_trials()
    min_steps: Count | None = _min_steps(default=None)
    max_steps: Count = _max_steps()
    reduction_factor: Factor = _reduction_factor()
    brackets: Count = Field(default=3, description="how many brackets, the most aggressive first")


class MedianTuner(SamplingTuner):
    """The median stopping rule: a trial whose best is worse than the median of the others' averages is stopped."""

    kind: Literal["median"] = "median"
    num_trials: Count = _num_trials()
    max_steps: Count = _max_steps()
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

    def check_study(self, spec: StudySpec) -> None:
        if self.interval is None and spec.eval_every is None:
            raise FieldError("tuner.interval", "is missing: the number of steps between decisions, or give eval_every")


class BanditTuner(SamplingTuner):
    """The bandit policy: a trial whose best is not within a factor of 1 + `epsilon` of the best of all is stopped."""

    kind: Literal["bandit"] = "bandit"
    num_trials: Count = _num_trials()
    max_steps: Count = _max_steps()
    interval: Count = common("interval", "the number of steps between decisions, at least 1", default=10)
    epsilon: float = common("epsilon", "a number, 0 or more", default=0.5, ge=0, allow_inf_nan=False)


MOST_DRAWS = 10
"""After so many times its size, a population begins with what was drawn, whatever chance would do."""


class CurveTuner(SamplingTuner):
    """What tuners have in common that predict learning curves, and decide when a trial comes to a boundary."""

    num_trials: Count = _num_trials()
    max_steps: Count = _max_steps()
    bounds: Annotated[list[float | None], Field(min_length=2, max_length=2)] = Field(
        default=[None, None], description="a list of the least and the greatest value of the metric, null if unknown"
    )

    def check_study(self, spec: StudySpec) -> None:
        least, greatest = self.bounds
        if least is not None and greatest is not None and not least < greatest:
            raise FieldError("tuner.bounds", f"must begin with the lesser one, got {least:g} and {greatest:g}")


class EarlyTermTuner(CurveTuner):
    """Predictive termination: a trial ends if it will hardly come to the best value seen so far."""

    kind: Literal["early_term"] = "early_term"
    boundary: Count = common("boundary", "the number of steps between decisions, at least 1", default=30)
    delta: float = Field(default=0.05, ge=0, le=1, description="a number from 0 to 1: less likely trials end")


class PopTuner(CurveTuner):
    """POP: trials that will reach the target have slots of their own, the others take turns, hopeless ones end."""

    kind: Literal["pop"] = "pop"
    target: Annotated[float | list[float] | None, PlainValidator(_target, json_schema_input_type=_TARGET)] = Field(
        default=None,
        description="a number, or a list of numbers that are targets in turn; without it, the best value so far",
    )
    max_time: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = common(
        "max_time", "a number of seconds above 0: when the study ends, however far it is", default=None
    )
    boundary: Count | None = common(
        "boundary", "the number of steps between decisions, at least 1; without it, a tenth of max_steps", default=None
    )
    kill_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="a number: a trial with a worse value ends"
    )
    min_steps: Count = common(
        "min_steps", "the number of steps before which kill_threshold ends no trial, at least 1", default=1
    )
    lower_bound: float = Field(
        default=0.05, ge=0, le=1, description="a number from 0 to 1: a trial that is less likely to get there ends"
    )

    def targets(self) -> list[float]:
        """The targets in turn; none where it is the best value so far."""
        if self.target is None:
            return []
        return self.target if isinstance(self.target, list) else [self.target]

    def check_study(self, spec: StudySpec) -> None:
        super().check_study(spec)
        targets = self.targets()
        for one, following in itertools.pairwise(targets):
            if not (one < following if spec.mode == "max" else one > following):
                raise FieldError("tuner.target", f"must be harder one after the other, got {one:g}, {following:g}")


class PbtTuner(SamplingTuner):
    """Population based training: every `ready_steps`, the worst go on from copies of the best with other values."""

    kind: Literal["pbt"] = "pbt"
    population_size: Annotated[int, Field(ge=2)] = common(
        "population_size", "the number of trials trained side by side, at least 2", default=20
    )
    ready_steps: Count = common("ready_steps", "the number of steps between generations, at least 1")
    max_steps: Count = _max_steps()
    quantile: float = common(
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
        description="a number: what guessing reaches; configurations are drawn until half of them do better",
    )
    fixed: list[str] = Field(
        default=[], description="a list of hyper-parameters that never change in the middle, as those of architecture"
    )

    def check_study(self, spec: StudySpec) -> None:
        if self.ready_steps > self.max_steps:
            raise FieldError(
                "tuner.ready_steps", f"must not be more than max_steps, {self.max_steps}, got {self.ready_steps}"
            )
        for name in sorted(spec.search_space.parents() - set(self.fixed)):
            raise FieldError("tuner.fixed", f"must hold {name}: whether others exist depends on it")
        for number, name in enumerate(self.fixed):
            if name not in (spec.space or {}):
                known = list(spec.space or {})
                raise FieldError(
                    f"tuner.fixed[{number}]",
                    f"must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}",
                )


class CustomTuner(SamplingTuner):
    """A tuner that the server's operator registered from a file; a submitted study records its version."""

    kind: Literal["custom"] = "custom"
    name: Text = Field(description="the name of a tuner that is registered on the server")
    version: Text | None = Field(default=None, description="the version of the tuner, set by the server")
    args: dict[str, Json] = Field(default={}, description="an object of JSON values, the tuner's own fields")


class ExternalTuner(TunerSpec):
    """Wants nothing itself: trials come over the API, and the study ends when it is told to."""

    needs_space: ClassVar[bool] = False
    kind: Literal["external"] = "external"

    def configurations(self, spec: StudySpec) -> Iterator[dict[str, Sequence]]:
        return iter(())

    def check(self, spec: StudySpec) -> None:
        """It works with any study."""


Tuner = Annotated[
    GridTuner
    | RandomTuner
    | TrialsTuner
    | ShaTuner
    | AshaTuner
    | HyperbandTuner
    | AsyncHyperbandTuner
    | MedianTuner
    | BanditTuner
    | EarlyTermTuner
    | PopTuner
    | PbtTuner
    | CustomTuner
    | ExternalTuner,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[TunerSpec]] = {cls.model_fields["kind"].default: cls for cls in get_args(get_args(Tuner)[0])}


# --------------------------------------------------------------------------------------------------------------- study


class StudySpec(_Model):
    """One search by one tuner, as its user writes it. Raises `SpecError` with every problem there is.

    In Python, `where` may also be a function of the configuration (a dict of sequences); `to_json` then lists the
    trials that it lets through, since a function cannot be sent.
    """

    name: Text = Field(description="a name for the study, of at most 200 characters")
    trainer: Text = Field(description="the name of a trainer that is registered on the server")
    trainer_args: dict[str, Json] = Field(default={}, description="an object of JSON values, the trainer's arguments")
    runtime_args: dict[str, Json] = Field(
        default={},
        description="an object of JSON values, arguments of the trainer that change no result: paths, loader workers",
    )
    determinism: Literal["strict", "warn", "off"] = Field(
        default="strict",
        description="strict, where an operation without a deterministic form is an error; warn, where it makes the "
        "results not exact; or off, the fastest",
    )
    seed: Seed = Field(default=0, description="a whole number from 0 to 4294967295")
    metric: Text = Field(description="the name of a metric that the trainer's evaluate returns")
    mode: Literal["max", "min"] = Field(description="max or min: whether more or less of the metric is better")
    value: Literal["last", "best"] = Field(
        default="last", description="last or best: whether a trial's value is its last result, or the best on its way"
    )
    eval_every: Count | None = Field(default=None, description="the number of steps between evaluations, at least 1")
    priority: float = Field(default=1, ge=0, allow_inf_nan=False, description="a number, 0 or more")
    max_restarts: Restarts = Field(
        default=2, description="how often an error at one step is tried again before it fails a trial, 0 or more"
    )
    max_failures: Restarts | None = Field(
        default=None, description="how many trials may fail before the study does, 0 or more"
    )
    weight: float = Field(
        default=1,
        gt=0,
        allow_inf_nan=False,
        description="a number above 0: its share of the slots beside other studies",
    )
    max_slots: Count | None = Field(default=None, description="how many slots it may have at once, at least 1")
    merge: bool = Field(default=True, description="true, or false to train every trial alone from step 0")
    space: Entries | None = Field(default=None, description="an object from hyper-parameter to values")
    where: Annotated[str | Where | None, PlainValidator(_where, json_schema_input_type=str | None)] = Field(
        default=None, description="an expression over the space's hyper-parameters"
    )
    tuner: Tuner = Field(description=f"an object with a kind, which is one of {', '.join(KINDS)}")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SpecError([_problem(detail) for detail in error.errors()]) from None
        except RecursionError:
            raise SpecError([Problem("", "must not be nested this deeply")]) from None

    @model_validator(mode="after")
    def _check_arguments(self) -> StudySpec:
        for field in ("trainer_args", "runtime_args"):
            for name in ("seed", "device"):
                if name in getattr(self, field):
                    raise FieldError(f"{field}.{name}", "must be left out: the trainer is given it by the worker")
        for name in self.runtime_args:
            if name in self.trainer_args:
                raise FieldError(f"runtime_args.{name}", "must be in one of trainer_args and runtime_args, not in both")
        return self

    @model_validator(mode="after")
    def _check_space(self) -> StudySpec:
        if self.tuner.needs_space and self.space is None:
            raise SequenceError("space", "is missing: an object from hyper-parameter to values")
        for field in ("space", "where"):
            if not self.tuner.needs_space and getattr(self, field) is not None:
                raise SequenceError(field, f"must be left out: the tuner {self.tuner.kind} has no space")
        self._check_first()
        try:
            self.tuner.check(self)
        except (WhereError, FieldError):
            raise
        except SequenceError as error:
            raise SequenceError(_path("space", error.field), error.problem) from None
        return self

    def _check_first(self) -> None:
        for number, configuration in enumerate(self.first):
            here = [name for name in self.space or {} if self.search_space.exists(name, configuration)]
            if set(here) != set(configuration):
                got = ", ".join(configuration)
                raise FieldError(f"tuner.first[{number}]", f"must hold exactly {', '.join(here)}, got {got}")

    @classmethod
    def from_dict(cls, values: Any, limits: Limits | None = LIMITS) -> StudySpec:
        """The study that a JSON object writes. Without `limits`, it may ask for any amount: it was checked before."""
        from stagetree.spec_limits import check_limits

        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise SpecError([Problem("", f"must be an object with the fields of a study, got {shown(values)}")])
        if limits is None:
            return cls(**values)
        try:
            check_size(values, limits)
        except SequenceError as error:
            raise SpecError([Problem(error.field, error.problem)]) from None
        spec = cls(**values)
        check_limits(spec, limits)
        return spec

    @classmethod
    def from_file(cls, path: str | Path, limits: Limits | None = LIMITS) -> StudySpec:
        """The study in a YAML file, or in a JSON file if its name ends in `.json`."""
        from stagetree.study_file import read

        values = read(Path(path))
        try:
            return cls.from_dict(values, limits)
        except SpecError as error:
            raise SpecError(error.problems, str(path)) from None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `from_dict` reads back: every field that is set or has a default, in order."""
        spec = self._listed() if callable(self.where) else self
        values = spec.model_dump(mode="json", exclude_none=True)
        as_ever = {"runtime_args": {}, "determinism": "strict"}  # left out, as in studies of before there was a choice
        return {name: value for name, value in values.items() if name not in as_ever or value != as_ever[name]}

    @cached_property
    def search_space(self) -> Space:
        """The space with its `where`."""
        return Space(self.space or {}, self.where)

    @property
    def sampling_seed(self) -> int:
        """What configurations are drawn from: the tuner's own seed, or the study's where it has none yet."""
        own: int | None = getattr(self.tuner, "sampling_seed", None)
        return self.seed if own is None else own

    @cached_property
    def first(self) -> list[dict[str, Sequence]]:
        """The configurations that are tried before any are drawn."""
        given: list[dict[str, Any]] | None = getattr(self.tuner, "first", None)
        return [{name: parse(value) for name, value in configuration.items()} for configuration in given or ()]

    def with_sampling_seed(self, seed: int) -> StudySpec:
        """The same study, drawing from a seed if its tuner draws and its user has given none."""
        if getattr(self.tuner, "sampling_seed", self) is not None:
            return self
        return self.model_copy(update={"tuner": self.tuner.model_copy(update={"sampling_seed": seed})})

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a study on record is this one, but for the seed that it was given when it was submitted."""
        given = getattr(self.tuner, "sampling_seed", None)
        tuner = {**recorded.get("tuner", {})}
        if given is None:
            tuner.pop("sampling_seed", None)
        return {**recorded, "tuner": tuner} == self.to_json()

    def configurations(self) -> Iterator[dict[str, Sequence]]:
        """The configurations the tuner begins with, in the order of their trials."""
        return self.tuner.configurations(self)

    def _listed(self) -> StudySpec:
        """The same trials, listed one by one."""
        if not isinstance(self.tuner, GridTuner | RandomTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        steps = self.tuner.max_steps
        tuner = {"kind": "trials", "trials": [{"hp": hp, "steps": steps} for hp in self.configurations()]}
        fields = {name: getattr(self, name) for name in StudySpec.model_fields}
        return StudySpec(**{**fields, "space": None, "where": None, "tuner": tuner})


# ------------------------------------------------------------------------------------------------------------ problems


def shown(value: Any) -> str:
    """A value in an error message, cut to a length that can be read."""
    short = Repr()
    short.maxstring = short.maxother = 80
    return short.repr(value)


def _problem(detail: ErrorDetails) -> Problem:
    """What pydantic found, as a path and a sentence."""
    owner, names = _owner(detail["loc"])
    path = _path(*(part for number, part in enumerate(detail["loc"]) if not _is_tag(detail["loc"], number)))
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return Problem("where" if isinstance(error, WhereError) else _path(path, error.field), error.problem)
    if detail["type"].startswith("union_tag"):
        path = f"{path}.kind"
    return Problem(path, _sentence(detail, owner, str(names[0]) if names else ""))


def _sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    got = shown(detail["input"])
    known = [field for field in owner.model_fields if field != "kind"]
    match detail["type"]:
        case "extra_forbidden" if field := next((field for field in known if name in _OTHER_NAMES.get(field, ())), ""):
            return f"is another name for {field}, which is there already"
        case "extra_forbidden":
            return f"is not a field here: there are {', '.join(known)}{did_you_mean(name, known)}"
        case "missing":
            return f"is missing: {_description(owner, name)}"
        case "union_tag_not_found":
            return f"is missing: one of {', '.join(KINDS)}"
        case "union_tag_invalid":
            kind = detail["ctx"]["tag"]
            return f"must be one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
        case "model_type":
            return f"must be an object with {' and '.join(TrialSpec.model_fields)}, got {got}"
        case _ if detail["loc"][-1] == "[key]":
            return f"must be a string, as all keys, got {got}"
        case _:
            return f"must be {_description(owner, name)}, got {got}"


def _description(owner: type[BaseModel], name: str) -> str:
    for field, info in owner.model_fields.items():
        if name in (field, *_OTHER_NAMES.get(field, ())):
            return str(info.description)
    raise AssertionError(f"{owner.__name__} has no field {name}")


def _owner(loc: tuple[int | str, ...]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a place belongs to, and the rest of the path in it."""
    if loc[:1] != ("tuner",) or len(loc) == 1:
        return StudySpec, loc
    if loc[1:3] == ("trials", "trials") and len(loc) > 4:
        return TrialSpec, loc[4:]
    return KINDS[str(loc[1])], loc[2:]


def _is_tag(loc: tuple[int | str, ...], number: int) -> bool:
    """Whether a part of a place is not in the user's object, but pydantic's own: the kind of the tuner."""
    return (number == 1 and loc[0] == "tuner") or loc[number] == "[key]"


def _path(*parts: int | str) -> str:
    """The parts as one path: `space.lr[1].gamma`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part:
            path += part if not path or part.startswith(("[", ".")) else f".{part}"
    return path
