"""What tuners have in common: all of them, and those that take configurations from a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Protocol

from pydantic import ConfigDict, Field

from stagetree.sequences import Sequence
from stagetree.space import Space, WhereError
from stagetree.spec.errors import FieldError
from stagetree.spec.fields import Seed, Sequences, SpecPart, distinct_field, first_field, sampling_seed_field


class TunedStudy(Protocol):
    """What a tuner looks at of its study."""

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
    """In Python a tuner knows its own kind; a study file must say it."""
    schema["required"] = ["kind", *schema.get("required", ())]


class TunerSpec(SpecPart):
    """What all tuners have in common.

    needs_space: whether the study has a space. trains_to_the_end: whether every trial is trained for as long as was
    said at its start, so that it is known beforehand how many are trained side by side. takes_objectives: whether its
    study may have several metrics, or constraints.
    """

    model_config = ConfigDict(json_schema_extra=_kind_is_required)
    place: ClassVar[str] = "tuner"
    needs_space: ClassVar[bool] = True
    trains_to_the_end: ClassVar[bool] = False
    takes_objectives: ClassVar[bool] = False

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        """The configurations this tuner begins with, in order."""
        raise NotImplementedError

    def check(self, spec: TunedStudy) -> None:
        """Raise `SequenceError` if the tuner cannot work with the study's space."""
        next(self.configurations(spec))


MODELLING = ("tpe", "gp")
"""The samplers that can model each rung by itself, or all results as one."""

DRAWN_FIRST = {"tpe": 10, "gp": 4, "cmaes": 1}
"""With fewer results a sampler draws by chance. Optuna's own number is ten for `gp`, too: of a budget of twelve trials
that leaves the model two.
"""


class SamplingTuner(TunerSpec):
    """What tuners have in common that take configurations one by one from a sampler."""

    sampler: Literal["random", "grid", "sobol", "halton", "tpe", "cmaes", "gp", "trunks"] = Field(
        default="random",
        description="random, grid, sobol, halton, tpe, cmaes, gp or trunks: where configurations come from",
    )
    sampling_seed: Seed | None = sampling_seed_field()
    first: list[Sequences] | None = first_field()
    distinct: bool = distinct_field()
    per_rung: bool | None = Field(
        default=None,
        description="true (the default) or false: whether tpe and gp model the results of each rung by themselves, as "
        "in BOHB, or the value at the highest step of each trial",
    )

    def check(self, spec: TunedStudy) -> None:
        if self.sampler != "grid":
            spec.search_space.sample(spec.sampling_seed, 0)
        elif spec.search_space.is_empty():
            raise WhereError("must let at least one combination of the space through, got none")
        if self.per_rung is not None and self.sampler not in MODELLING:
            text = f"must be left out for {self.sampler}: it is of the samplers {' and '.join(MODELLING)}"
            raise FieldError("tuner.per_rung", text)
        self.check_steps()
        self.check_study(spec)

    def check_study(self, spec: TunedStudy) -> None:
        """Raise `SequenceError` if the tuner cannot work with the rest of the study."""

    def check_steps(self) -> None:
        """Raise `SequenceError` if the rungs make no sense."""
        least, most = getattr(self, "min_steps", None), getattr(self, "max_steps", None)
        if least is not None and most is not None and least > most:
            raise FieldError("tuner.min_steps", f"must not be more than max_steps, {most}, got {least}")
