"""The objectives of a study: metrics and constraints, and which studies can have more than one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field

from stagetree.space.constraints import read_constraint
from stagetree.spec.errors import FieldError
from stagetree.spec.fields import OTHER_NAMES, SpecPart, Text, aliased
from stagetree.spec.tuners import KINDS, AshaTuner, SamplingTuner, TunerSpec
from stagetree.spec.tuners.base import TunedStudy

MODES = {"maximize": "max", "minimize": "min"}
"""Names of the modes in other tools."""

MOST_METRICS, MOST_CONSTRAINTS = 10, 100


def as_mode(value: Any) -> Any:
    """Translate `maximize` and `minimize`."""
    return MODES.get(value, value) if isinstance(value, str) else value


Mode = Annotated[Literal["max", "min"], BeforeValidator(as_mode)]


class Metric(SpecPart):
    name: Text = Field(description="the name of a metric that the trainer's evaluate returns")
    mode: Mode = aliased("mode", "max or min: whether more or less of the metric is better")


def _as_constraint(text: str) -> str:
    read_constraint(text)
    return text


Metrics = Annotated[list[Metric], Field(max_length=MOST_METRICS)]
Constraints = Annotated[list[Annotated[Text, AfterValidator(_as_constraint)]], Field(max_length=MOST_CONSTRAINTS)]


def name_first_metric(fields: dict[str, Any]) -> None:
    """Fill in `metric` and `mode` from the first of `metrics`. A list of one metric is dropped."""
    metrics = fields.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        return
    first = metrics[0] if isinstance(metrics[0], Mapping) else getattr(metrics[0], "__dict__", {})
    modes = ("mode", *OTHER_NAMES["mode"])
    already = [name for name in ("metric", *modes, *MODES) if name in fields]
    mode = next((first[name] for name in modes if name in first), None)
    if not already:
        fields |= {name: value for name, value in (("metric", first.get("name")), ("mode", mode)) if value is not None}
    if len(metrics) == 1 and set(first) <= {"name", *modes} and not already:
        del fields["metrics"]


NON_LEARNING = ("random", "grid", "sobol", "halton")
"""Samplers that do not use results."""


class JudgedStudy(TunedStudy, Protocol):
    """The fields of a study that objectives depend on."""

    @property
    def metric(self) -> str: ...
    @property
    def metrics(self) -> list[Metric]: ...
    @property
    def constraints(self) -> list[str]: ...
    @property
    def value(self) -> str: ...
    @property
    def target(self) -> float | None: ...
    @property
    def patience(self) -> int | None: ...
    @property
    def stop_hopeless(self) -> Any: ...
    @property
    def tuner(self) -> TunerSpec: ...


def check_objectives(spec: JudgedStudy) -> None:
    """Raise `FieldError` if metrics contradict each other or the study cannot have several metrics or constraints."""
    if spec.metrics:
        _check_metrics(spec)
    if not spec.metrics and not spec.constraints:
        return
    objectives = "several metrics" if spec.metrics else "constraints"
    if not spec.tuner.takes_objectives:
        kinds = ", ".join(name for name, kind in KINDS.items() if kind.takes_objectives)
        raise FieldError("tuner.kind", f"must be one of {kinds} with {objectives}, got {spec.tuner.kind}")  # type: ignore[attr-defined]
    if isinstance(spec.tuner, SamplingTuner) and spec.tuner.sampler not in (None, *NON_LEARNING):
        raise FieldError(
            "tuner.sampler", f"must be one of {', '.join(NON_LEARNING)} with {objectives}, got {spec.tuner.sampler}"
        )
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.type == "stopping":
        raise FieldError("tuner.type", f"must be promotion with {objectives}, got stopping")
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.promote_by == "predicted":
        raise FieldError("tuner.promote_by", f"must be result with {objectives}, got predicted")
    if getattr(spec.tuner, "rung_value", None) is not None:
        raise FieldError("tuner.rung_value", f"must be left out with {objectives}")
    if spec.stop_hopeless is not None:
        raise FieldError("stop_hopeless", f"must be left out with {objectives}: it foretells one metric")


def _check_metrics(spec: JudgedStudy) -> None:
    first, names = spec.metrics[0], [each.name for each in spec.metrics]
    if (spec.metric, spec.mode) != (first.name, first.mode):
        got = f"{spec.metric} ({spec.mode}) and {first.name} ({first.mode})"
        raise FieldError("metrics[0]", f"must be the same as metric and mode, which may be left out, got {got}")
    if len(set(names)) < len(names):
        raise FieldError("metrics", f"must name each metric once, got {', '.join(names)}")
    for field in ("target", "patience"):
        if getattr(spec, field) is not None:
            raise FieldError(field, "must be left out with several metrics: no result is the best of them")
    if spec.value == "best" and len(names) > 1:
        raise FieldError("value", "must be last with several metrics: no result on a trial's way is the best, got best")
