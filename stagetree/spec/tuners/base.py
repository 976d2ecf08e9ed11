"""Base classes of tuners, and of tuners that take configurations from a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Protocol

from pydantic import ConfigDict, Field

from stagetree.sequences import Sequence
from stagetree.space import Space, WhereError
from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Seed, Sequences, SpecPart, distinct_field, first_field, sampling_seed_field


class TunedStudy(Protocol):
    """The fields of a study that its tuner depends on."""

    @property
    def mode(self) -> Literal["max", "min"]: ...
    @property
    def eval_every(self) -> int | None: ...
    @property
    def space(self) -> dict[str, Any] | None: ...
    @property
    def search_space(self) -> Space: ...
    @property
    def sampling_seed(self) -> int: ...
    @property
    def first(self) -> list[dict[str, Sequence]]: ...


def _kind_is_required(schema: dict[str, Any]) -> None:
    """In Python a tuner's class determines its kind; a study file must name it."""
    schema["required"] = ["kind", *schema.get("required", ())]


class TunerSpec(SpecPart):
    """The base class of all tuners."""

    model_config = ConfigDict(json_schema_extra=_kind_is_required)
    place: ClassVar[str] = "tuner"
    needs_space: ClassVar[bool] = True
    """Whether the study has a space."""
    trains_to_the_end: ClassVar[bool] = False
    """Whether every trial is trained for its full length, so that the number of parallel trials is fixed."""
    takes_objectives: ClassVar[bool] = False
    """Whether the study may have several metrics, or constraints."""

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        """The configurations that the tuner begins with, in order."""
        raise NotImplementedError

    def check(self, spec: TunedStudy) -> None:
        """Raise `SequenceError` if the tuner cannot work with the study's space."""
        next(self.configurations(spec))


DRAWN_FIRST = {"tpe": 10, "gp": 4, "trunks": 4, "cmaes": 1}
"""How many results a sampler needs before it stops sampling at random."""


SamplerName = Literal["random", "grid", "sobol", "halton", "tpe", "cmaes", "gp", "trunks"]


def sampler_field(default: str | None, text: str = "") -> Any:
    described = "random, grid, sobol, halton, tpe, cmaes, gp or trunks: where configurations come from"
    return Field(default=default, description=described + text)


class SamplingTuner(TunerSpec):
    """The base class of tuners that take configurations one by one from a sampler."""

    sampler: SamplerName | None = sampler_field(default="random")
    sampling_seed: Seed | None = sampling_seed_field()
    first: list[Sequences] | None = first_field()
    distinct: bool = distinct_field()
    per_rung: bool | None = Field(
        default=None,
        description="which results tpe learns from: true, the results of one rung at a time, as in BOHB; false, the "
        "value at the highest step of each trial; by default all results are ranked by steps and value",
    )

    def check(self, spec: TunedStudy) -> None:
        if self.sampler != "grid":
            spec.search_space.sample(spec.sampling_seed, 0)
        elif spec.search_space.is_empty():
            raise WhereError("must let at least one combination of the space through, got none")
        if self.per_rung is not None and self.sampler != "tpe":
            sampler = self.sampler or "the default sampler"
            raise FieldError("tuner.per_rung", f"must be left out for {sampler}: it is of the sampler tpe")
        self.check_steps()
        self.check_study(spec)

    def check_study(self, spec: TunedStudy) -> None:
        """Raise `SequenceError` if the tuner cannot work with the rest of the study."""

    def check_steps(self) -> None:
        """Raise `SequenceError` if the rungs contradict each other."""
        least, most = getattr(self, "min_steps", None), getattr(self, "max_steps", None)
        if least is not None and most is not None and least > most:
            raise FieldError("tuner.min_steps", f"must not be more than max_steps, {most}, got {least}")
