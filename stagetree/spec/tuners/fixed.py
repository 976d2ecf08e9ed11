"""Tuners that judge no result: each trial is trained for as long as was said at the start, or its user says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count, islice
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stagetree.sequences import Sequence, parse
from stagetree.sequences.fractions import resolved
from stagetree.space.distinct import Distinct
from stagetree.space.where import WhereError
from stagetree.spec.fields import (
    Count,
    Json,
    Seed,
    Sequences,
    SpecPart,
    Text,
    common,
    distinct_field,
    first_field,
    sampling_seed_field,
)
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy, TunerSpec


class TrialSpec(SpecPart):
    """One trial: a configuration, and for how many steps to train it."""

    hp: Sequences = Field(description="an object from hyper-parameter to sequence")
    steps: Count = Field(description="the number of steps to train for, at least 1")

    @model_validator(mode="before")
    @classmethod
    def _count_steps(cls, written: Any) -> Any:
        """Fractions of the trial's length become numbers of steps."""
        if not isinstance(written, Mapping) or not isinstance(written.get("hp"), Mapping):
            return written
        steps = written.get("steps")
        length = steps if isinstance(steps, int) and not isinstance(steps, bool) else None
        hp = {name: resolved(value, length, f"hp.{name}") for name, value in written["hp"].items()}
        return {**written, "hp": hp}

    def configuration(self) -> dict[str, Sequence]:
        """The sequences of the trial."""
        return {name: parse(value) for name, value in self.hp.items()}


class FixedTuner(TunerSpec):
    """Trains each configuration of a space for `max_steps`, or, without that, for the `max_steps` in the space."""

    trains_to_the_end: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = True
    kind: str
    max_steps: Count | None = common(
        "max_steps",
        "the number of steps to train each trial for, at least 1",
        default=None,
    )

    def with_steps(self, spec: TunedStudy) -> Iterator[tuple[dict[str, Sequence], int]]:
        """Each configuration, and for how many steps it is trained."""
        space = spec.search_space
        for configuration in self.drawn(spec):
            yield space.without_length(configuration), self.max_steps or space.length_of(configuration) or 0

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return (configuration for configuration, _ in self.with_steps(spec))

    def drawn(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        """The configurations of the space, with their lengths where it says them."""
        raise NotImplementedError

    def check(self, spec: TunedStudy) -> None:
        next(self.configurations(spec), None)


class GridTuner(FixedTuner):
    """Trains every combination in the space for `max_steps`."""

    kind: Literal["grid"] = "grid"

    def drawn(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return spec.search_space.grid()

    def check(self, spec: TunedStudy) -> None:
        """Looks at a bounded part of it: the number of combinations is compared with what is allowed later."""
        if spec.search_space.is_empty():
            raise WhereError("must let at least one combination of the space through, got none")


class RandomTuner(FixedTuner):
    """Draws `num_trials` configurations and trains each for `max_steps`."""

    kind: Literal["random"] = "random"
    num_trials: Count = common("num_trials", "the number of configurations to draw, at least 1")
    sampling_seed: Seed | None = sampling_seed_field()
    first: list[Sequences] | None = first_field()
    distinct: bool = distinct_field()

    def drawn(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        drawn = (spec.search_space.sample(spec.sampling_seed, number) for number in count())
        if self.distinct:
            unlike = Distinct(spec.search_space, self.max_steps, spec.first)
            return islice(chain(spec.first, unlike.without_repeats(drawn, spec.sampling_seed)), self.num_trials)
        return islice(chain(spec.first, drawn), self.num_trials)


class TrialsTuner(TunerSpec):
    """Trains the trials it is given; the study has no space."""

    needs_space: ClassVar[bool] = False
    trains_to_the_end: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = True
    kind: Literal["trials"] = "trials"
    trials: list[TrialSpec] = Field(description="a list of at least one {hp: {...}, steps: n}", min_length=1)

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return (trial.configuration() for trial in self.trials)


class ExternalTuner(TunerSpec):
    """Wants nothing itself: trials come over the API, and the study ends when it is told to."""

    needs_space: ClassVar[bool] = False
    takes_objectives: ClassVar[bool] = True
    kind: Literal["external"] = "external"

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return iter(())

    def check(self, spec: TunedStudy) -> None:
        """It works with any study."""


class CustomTuner(SamplingTuner):
    """A tuner that the server's operator registered from a file; a submitted study records its version."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["custom"] = "custom"
    name: Text = Field(description="the name of a tuner that is registered on the server")
    version: Text | None = Field(default=None, description="the version of the tuner, set by the server")
    args: dict[str, Json] = Field(default={}, description="an object of JSON values, the tuner's own fields")
