"""`StudySpec`: all fields of a study, checked with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, ValidationError, model_validator

from stagetree.limits import LIMITS, Limits, check_size
from stagetree.sequences import Sequence, SequenceError, parse
from stagetree.space import LENGTH, Space, Where, WhereError
from stagetree.spec.checks import (
    EMPTY,
    check_length,
    check_limits,
    check_written_names,
    missing_length_problems,
    problem_in,
    translate_field_aliases,
)
from stagetree.spec.errors import FieldError, Problem, SpecError, first_problems, join_path, shorten
from stagetree.spec.fields import (
    Count,
    Entries,
    Finite,
    Restarts,
    Seconds,
    Seed,
    Share,
    Sinks,
    SpecModel,
    Steps,
    Text,
    Width,
    aliased,
    as_where,
)
from stagetree.spec.objectives import MOST_CONSTRAINTS, MOST_METRICS, Constraints, Metrics, Mode, check_objectives
from stagetree.spec.suggestions import (
    MOST_STUDIES,
    MOST_SUGGESTIONS,
    LearnFrom,
    Suggestions,
    check_learn_from,
    check_suggestions,
)
from stagetree.spec.trainer_inputs import (
    Argument,
    BeginFrom,
    Devices,
    FreshProcesses,
    Inputs,
    Parallel,
    Ranks,
    Repeats,
    Shards,
    absolute,
    check_arguments,
    check_ranks,
    check_repeats,
)
from stagetree.spec.tuners import KINDS, AsynchronousTuner, FixedTuner, StopHopeless, TrialsTuner, Tuner

OMITTED = frozenset(
    {
        "runtime_args",
        "determinism",
        "sinks",
        "packing",
        "check",
        "audit",
        "inexact",
        "fresh_processes",
        "inputs",
        "ranks",
        "parallel",
        "devices",
        "keep_at",
        "repeats",
        "metrics",
        "constraints",
        "suggestions",
        "learn_from",
    }
)
"""Fields that are omitted from the JSON of a study when they have their defaults."""

FILLED_IN = ("sampling_seed", "ties", "sampler")
"""The fields of a tuner that get a value at the submission of a study, if it has them and its user set none."""


class StudySpec(SpecModel):
    """One search by one tuner, as its user writes it. Raises `SpecError` with all problems.

    In Python, `where` may also be a function of the configuration (a dict of sequences). Since a function cannot be
    sent, `to_json` then lists the trials that it accepts.
    """

    suggestions: Suggestions = Field(
        default=[],
        description=f"a list of at most {MOST_SUGGESTIONS} objects from hyper-parameter to value: configurations that "
        "are tried before any are sampled; the rest of one is sampled",
    )
    learn_from: LearnFrom = Field(
        default=[],
        description=f"a list of at most {MOST_STUDIES} studies of the server, by id: the sampler begins with their "
        "results",
    )
    name: Text = Field(description="a name for the study, of at most 200 characters")
    trainer: Text = Field(description="the name of a trainer that is registered on the server")
    trainer_args: dict[str, Argument] = Field(
        default={}, description="an object of JSON values, the trainer's arguments"
    )
    runtime_args: dict[str, Argument] = Field(
        default={},
        description="an object of JSON values, arguments of the trainer that change no result: paths, loader workers",
    )
    determinism: Literal["strict", "warn", "off"] = Field(
        default="strict",
        description="strict, where an operation without a deterministic form is an error; warn, where it makes the "
        "results not exact; or off, the fastest",
    )
    packing: Width = Field(
        default=0,
        description="auto, true, or how many trials at most (1 to 64) a slot trains as one; 0 trains each alone",
    )
    ranks: Ranks = 1
    shards: Shards = Field(
        default=None,
        description="a power of two from 2 to 1024: each batch has this number of parts, for any number of ranks",
    )
    parallel: Parallel = "tree"
    fresh_processes: FreshProcesses = "auto"
    devices: Devices = Field(
        default=[],
        description="a list of at most 16 kinds of GPU, such as [H100]: only slots of these train its stages. With "
        "several, a trial may change between them; without, it stays on the kind on which it began",
    )
    begin_from: BeginFrom | None = Field(
        default=None,
        description="an object with file, or with study, trial and step: the weights that every trial begins with",
    )
    inputs: Inputs = Field(
        default=[],
        description="a list of at most 100 files and folders that the trainer reads; others are another plan",
    )
    seed: Seed = Field(default=0, description="a whole number from 0 to 4294967295")
    metric: Text = Field(description="the name of a metric that the trainer's evaluate returns")
    mode: Mode = aliased("mode", "max or min: whether more or less of the metric is better")
    metrics: Metrics = Field(
        default=[], description=f"a list of at most {MOST_METRICS} objects with name and mode, the first of them metric"
    )
    constraints: Constraints = Field(
        default=[],
        description=f"a list of at most {MOST_CONSTRAINTS} comparisons of reported metrics such as memory_gb <= 70",
    )
    value: Literal["last", "best"] = Field(
        default="last", description="last or best: whether a trial's value is its last result, or the best on its way"
    )
    repeats: Repeats = 1
    eval_every: Count | None = Field(default=None, description="the number of steps between evaluations, at least 1")
    priority: float = Field(default=1, ge=0, allow_inf_nan=False, description="a number, 0 or more")
    keep_best: Restarts = Field(
        default=1, description="of how many of its best trials the final state is kept for good, 0 or more"
    )
    keep_at: Steps = Field(default=[], description="a list of at most 1000 steps, after which states are kept for good")
    keep_every: Count | None = Field(default=None, description="a number of steps: as keep_at, at each multiple of it")
    max_restarts: Restarts = Field(
        default=2, description="how often an error at one step is tried again before it fails a trial, 0 or more"
    )
    max_failures: Restarts | None = Field(
        default=None, description="how many trials may fail before the study does, 0 or more"
    )
    max_time: Seconds | None = aliased(
        "max_time", "a number of seconds above 0: the study ends this long after its submission", default=None
    )
    max_total_steps: Count | None = Field(
        default=None, description="the most steps that may be trained for it, at least 1"
    )
    max_slot_seconds: Seconds | None = Field(
        default=None, description="a number of seconds above 0: the most slot time that the study may take"
    )
    patience: Count | None = Field(
        default=None,
        description="a number of results, at least 1: the study ends after this many in a row of which none is better "
        "than those before it at the same step",
    )
    target: Finite | None = Field(
        default=None, description="a finite number: when a trial's result is as good, the study ends"
    )
    target_at: Literal["results", "evaluations"] | None = Field(
        default=None,
        description="results or evaluations: whether only a result at a step that the tuner asked about reaches the "
        "target, or an evaluation of eval_every, too. With value: best, evaluations is the default",
    )
    weight: float = Field(
        default=1,
        gt=0,
        allow_inf_nan=False,
        description="a number above 0: its share of the slots beside other studies",
    )
    max_slots: Count | None = Field(default=None, description="how many slots it may have at once, at least 1")
    stop_hopeless: StopHopeless | None = Field(
        default=None,
        description="an object with any of boundary, delta, bounds, keep_top and max_steps: trials that are "
        "unlikely to reach the best value end",
    )
    sinks: Sinks = Field(
        default=[],
        description="places such as tensorboard:DIR, wandb:PROJECT, mlflow:URI or otlp:URL, that it is written to",
    )
    check: bool = Field(
        default=True, description="true, or false to train without trying the trainer's first steps before"
    )
    audit: Share = Field(
        default=0.02,
        description="a number from 0 to 1: the share of finished stages that idle slots train again, to compare",
    )
    inexact: Literal["alone", "refuse", "allow"] = Field(
        default="alone",
        description="alone, refuse or allow: whether the study trains each trial alone, fails, or shares anyway when "
        "its trainer is not exact",
    )
    merge: bool = Field(default=True, description="true, or false to train every trial alone from step 0")
    space: Entries | None = Field(default=None, description="an object from hyper-parameter to values")
    where: Annotated[str | Where | None, PlainValidator(as_where, json_schema_input_type=str | None)] = Field(
        default=None, description="an expression over the space's hyper-parameters"
    )
    tuner: Tuner = Field(description=f"an object with a kind, which is one of {', '.join(KINDS)}")

    def __init__(self, **values: Any) -> None:
        values = translate_field_aliases(values)
        missing = list(missing_length_problems(values))
        try:
            super().__init__(**values)
        except ValidationError as error:
            details = error.errors(include_url=False)
            space = values.get("space", {})
            problems = (problem_in(detail, type(self), EMPTY if space is None else space) for detail in details)
            raise SpecError([*first_problems(problems), *missing]) from None
        except RecursionError:
            raise SpecError([Problem("", "must not be nested this deeply")]) from None
        if missing:
            raise SpecError(missing)

    @model_validator(mode="after")
    def _check_parts(self) -> StudySpec:
        check_arguments(self.trainer_args, self.runtime_args)
        check_ranks(self.ranks, self.shards, self.parallel, self.packing, self.max_slots)
        listed = (trial.hp for trial in self.tuner.trials) if isinstance(self.tuner, TrialsTuner) else ()
        check_repeats(self.repeats, {name for names in (self.space or {}, *listed) for name in names})
        check_objectives(self)
        if self.target_at == "evaluations" and (problem := self._evaluations_problem()):
            raise FieldError("target_at", f"must be results {problem}, got evaluations")
        return self

    @model_validator(mode="after")
    def _check_space(self) -> StudySpec:
        if self.tuner.needs_space and self.space is None:
            raise SequenceError("space", "is missing: an object from hyper-parameter to values")
        for field in ("space", "where"):
            if not self.tuner.needs_space and getattr(self, field) is not None:
                raise SequenceError(field, f"must be left out: the tuner {self.tuner.kind} has no space")
        for number, configuration in enumerate(self.first):
            here = self.search_space.names(configuration)
            if set(here) != set(configuration):
                got = ", ".join(configuration)
                raise FieldError(f"tuner.first[{number}]", f"must hold exactly {', '.join(here)}, got {got}")
        if self.stop_hopeless is not None:
            self.stop_hopeless.check(self.tuner)
        try:
            if self.tuner.needs_space:
                self.search_space.check_where()
            self.tuner.check(self)
        except (WhereError, FieldError):
            raise
        except SequenceError as error:
            raise SequenceError(join_path("space", error.field), error.problem) from None
        check_suggestions(self)
        check_learn_from(self)
        return self

    @classmethod
    def from_dict(cls, values: Any, limits: Limits | None = LIMITS) -> StudySpec:
        """Parse a JSON object. `limits=None` skips the limits, for studies that were checked before."""
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise SpecError([Problem("", f"must be an object with the fields of a study, got {shorten(values)}")])
        if limits is None:
            return cls(**values)
        try:
            check_size(values, limits)
            check_written_names(values, limits)
            check_length(values)
        except SequenceError as error:
            raise SpecError([Problem(error.field, error.problem)]) from None
        spec = cls(**values)
        check_limits(spec, limits)
        return spec

    @classmethod
    def from_file(cls, path: str | Path, limits: Limits | None = LIMITS) -> StudySpec:
        """Parse a YAML file, or a JSON file if its name ends in `.json`. Paths are relative to its folder."""
        from stagetree.spec.file import read

        values = read(Path(path))
        try:
            return cls.from_dict(absolute(values, Path(path).parent) if isinstance(values, dict) else values, limits)
        except SpecError as error:
            raise SpecError(error.problems, str(path)) from None

    def __getstate__(self) -> dict[Any, Any]:
        """The fields alone, without the cached space, which cannot be pickled."""
        state = super().__getstate__()
        fields = {name: value for name, value in state["__dict__"].items() if name in type(self).model_fields}
        return {**state, "__dict__": fields}

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `from_dict` reads back: every field that is set or has a default, in order."""
        spec = self.list_trials() if callable(self.where) else self
        values = spec.model_dump(mode="json", exclude_none=True)
        fields = type(self).model_fields
        return {name: value for name, value in values.items() if name not in OMITTED or value != fields[name].default}

    def _evaluations_problem(self) -> str:
        """Why evaluations cannot reach the target; empty if they can: then the state of each new best one is kept."""
        if self.value != "best":
            return "without value: best, which keeps the state of the best evaluation"
        if self.repeats != 1:
            return "with repeats: no evaluation of one run is their mean"
        if getattr(self.tuner, "rung_value", None) is not None:
            return "with tuner.rung_value: trials go by values of their own at rungs"
        return ""

    def fill_in(self, sampling_seed: int) -> Self:
        """The study with a value for each field in `FILLED_IN`, and for `target_at`.

        Recorded studies of 0.1.0 lack them: their ties are by number, and only results reach their targets. Their
        sampler is on record.
        """
        values = {"sampling_seed": sampling_seed, "ties": "seed", "sampler": self.sampler}
        missing = {name: values[name] for name in FILLED_IN if getattr(self.tuner, name, self) is None}
        filled: dict[str, Any] = {"tuner": self.tuner.model_copy(update=missing)} if missing else {}
        if self.target is not None and self.target_at is None and not self._evaluations_problem():
            filled["target_at"] = "evaluations"
        return self.model_copy(update=filled) if filled else self

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a recorded study is this one, apart from values that were filled in on submission."""
        tuner, study = {**recorded.get("tuner", {})}, {**recorded}
        for name in FILLED_IN:
            if getattr(self.tuner, name, None) is None:
                tuner.pop(name, None)
        if self.target_at is None:
            study.pop("target_at", None)
        return {**study, "tuner": tuner} == self.to_json()

    def list_trials(self) -> Self:
        """The same study with its trials listed one by one."""
        if not isinstance(self.tuner, FixedTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        trials = [{"hp": hp, "steps": steps} for hp, steps in self.tuner.configurations_with_steps(self)]
        tuner = {"kind": "trials", "trials": trials}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "space": None, "where": None, "tuner": tuner})

    @property
    def lanes(self) -> int | None:
        """The lanes of a pack; None if they are chosen automatically."""
        return None if self.packing == "auto" else self.packing

    @cached_property
    def search_space(self) -> Space:
        """The space with its `where` and the length of trials."""
        steps = getattr(self.tuner, "max_steps", None)
        return Space(self.space or {}, self.where, steps, has_lengths=self.has_lengths)

    @property
    def has_lengths(self) -> bool:
        """Whether the space sets the length of each trial."""
        return isinstance(self.tuner, FixedTuner) and self.tuner.max_steps is None and LENGTH in (self.space or {})

    @property
    def sampling_seed(self) -> int:
        """The seed of the sampler: the tuner's own, or the study's until one is set."""
        own: int | None = getattr(self.tuner, "sampling_seed", None)
        return self.seed if own is None else own

    @property
    def sampler(self) -> str:
        """The sampler that the study has once it is submitted; empty if its tuner takes none."""
        if isinstance(self.tuner, AsynchronousTuner) and self.tuner.sampler is None:
            return self.tuner.default_sampler(self)
        return getattr(self.tuner, "sampler", "")

    @cached_property
    def first(self) -> list[dict[str, Sequence]]:
        """The configurations that are tried before any are sampled."""
        configurations: list[dict[str, Any]] | None = getattr(self.tuner, "first", None)
        return [{name: parse(value) for name, value in configuration.items()} for configuration in configurations or ()]

    def configurations(self) -> Iterator[dict[str, Sequence]]:
        """The configurations that the tuner begins with, in the order of their trials."""
        return self.tuner.configurations(self)
