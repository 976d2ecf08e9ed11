"""Tuners that use no results: a trial's length is fixed at its start, or set by its user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count, islice
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stagetree.sequences import Sequence, SequenceError, parse, parse_for_length
from stagetree.sequences.fractions import resolve_fractions
from stagetree.space.distinct import UniqueSamples
from stagetree.space.distributions import plain
from stagetree.space.notation import expand_at
from stagetree.space.references import Unbound, bind, read_references
from stagetree.space.where import WhereError
from stagetree.spec.fields import (
    Count,
    Json,
    Seed,
    Sequences,
    SpecPart,
    Text,
    aliased,
    distinct_field,
    first_field,
    max_steps_field,
    sampling_seed_field,
)
from stagetree.spec.tuners.base import SamplingTuner, TunedStudy, TunerSpec


class TrialSpec(SpecPart):
    """One trial: a configuration and its length."""

    hp: Sequences = Field(description="an object from hyper-parameter to sequence")
    steps: Count = Field(description="the number of steps to train for, at least 1")

    @model_validator(mode="before")
    @classmethod
    def _count_steps(cls, written: Any) -> Any:
        """Convert fractions of the trial's length, and references between hyper-parameters, to numbers of steps."""
        if not isinstance(written, Mapping) or not isinstance(written.get("hp"), Mapping):
            return written
        steps = written.get("steps")
        length = steps if isinstance(steps, int) and not isinstance(steps, bool) else None
        return {**written, "hp": _with_numbers({name: plain(value) for name, value in written["hp"].items()}, length)}

    def configuration(self) -> dict[str, Sequence]:
        return {name: parse(value) for name, value in self.hp.items()}


def _with_numbers(hp: Mapping[str, Any], steps: int | None) -> dict[str, Any]:
    """The hyper-parameters of a trial with numbers of steps only."""
    try:
        hp = {name: expand_at(value) for name, value in hp.items()}
        if not (following := read_references(hp)):
            return {name: resolve_fractions(value, steps, name) for name, value in hp.items()}
        values = {
            name: Unbound(value, name) if name in following else parse_for_length(value, steps, name)
            for name, value in hp.items()
        }
        return {name: each.to_json() for name, each in bind(values, steps).items()}
    except SequenceError as error:
        raise SequenceError(f"hp.{error.field}".strip("."), error.problem) from None


class FixedTuner(TunerSpec):
    """Trains each configuration of a space for `max_steps`, of the tuner or of the space."""

    trains_to_the_end: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = True
    kind: str
    max_steps: Count | None = max_steps_field(default=None)

    def configurations_with_steps(self, spec: TunedStudy) -> Iterator[tuple[dict[str, Sequence], int]]:
        """Each configuration with the length of its trial."""
        space = spec.search_space
        for configuration in self.sample_space(spec):
            yield space.drop_length(configuration), self.max_steps or space.length_of(configuration) or 0

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return (configuration for configuration, _ in self.configurations_with_steps(spec))

    def sample_space(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        """The configurations of the space, including lengths if the space sets them."""
        raise NotImplementedError

    def check(self, spec: TunedStudy) -> None:
        next(self.configurations(spec), None)


class GridTuner(FixedTuner):
    """Trains every combination in the space for `max_steps`."""

    kind: Literal["grid"] = "grid"

    def sample_space(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return spec.search_space.grid()

    def check(self, spec: TunedStudy) -> None:
        """Only a bounded part is checked here. The number of combinations is checked later."""
        if spec.search_space.is_empty():
            raise WhereError("must let at least one combination of the space through, got none")


class RandomTuner(FixedTuner):
    """Draws `num_trials` configurations and trains each for `max_steps`."""

    kind: Literal["random"] = "random"
    num_trials: Count = aliased("num_trials", "the number of configurations to sample, at least 1")
    sampling_seed: Seed | None = sampling_seed_field()
    first: list[Sequences] | None = first_field()
    distinct: bool = distinct_field()

    def sample_space(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        drawn = (spec.search_space.sample(spec.sampling_seed, number) for number in count())
        if self.distinct:
            unlike = UniqueSamples(spec.search_space, self.max_steps, spec.first)
            return islice(chain(spec.first, unlike.skip_repeats(drawn, spec.sampling_seed)), self.num_trials)
        return islice(chain(spec.first, drawn), self.num_trials)


class TrialsTuner(TunerSpec):
    """Trains the listed trials; the study has no space."""

    needs_space: ClassVar[bool] = False
    trains_to_the_end: ClassVar[bool] = True
    takes_objectives: ClassVar[bool] = True
    kind: Literal["trials"] = "trials"
    trials: list[TrialSpec] = Field(description="a list of at least one {hp: {...}, steps: n}", min_length=1)

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return (trial.configuration() for trial in self.trials)


class ExternalTuner(TunerSpec):
    """Starts no trials itself: they are requested over the API, and the study ends on request."""

    needs_space: ClassVar[bool] = False
    takes_objectives: ClassVar[bool] = True
    kind: Literal["external"] = "external"

    def configurations(self, spec: TunedStudy) -> Iterator[dict[str, Sequence]]:
        return iter(())

    def check(self, spec: TunedStudy) -> None:
        """Accepts any study."""


class CustomTuner(SamplingTuner):
    """A tuner that the server's operator registered from a file. A submitted study records its version."""

    takes_objectives: ClassVar[bool] = True
    kind: Literal["custom"] = "custom"
    name: Text = Field(description="the name of a tuner that is registered on the server")
    version: Text | None = Field(default=None, description="the version of the tuner, set by the server")
    args: dict[str, Json] = Field(default={}, description="an object of JSON values, the tuner's own fields")
