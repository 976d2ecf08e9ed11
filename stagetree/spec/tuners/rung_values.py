"""Values by which trials are ranked at rungs instead of by their own: results of cooldowns, or of means of states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice, pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, SerializeAsAny

from stagetree.sequences import Sequence, SequenceError
from stagetree.sequences.merging import LINEAR, SHAPES, UNIFORM, window_steps
from stagetree.spec.errors import FieldError, SpecError, shorten
from stagetree.spec.fields import Finite, SpecPart
from stagetree.spec.tuners.base import TunedStudy

_COOLDOWN = "a number of steps, at least 2, or a fraction of the rung's, above 0 and below 1"
_WINDOW = "a number of steps, at least 1, or a fraction of the rung's, above 0 and below 1"
_WEIGHTS = "uniform, linear, or an object with decay: linear, cosine or sqrt, the decay that they imitate"


def _as_steps(value: Any, *, least: int, expected: str) -> Any:
    """A number of steps, or a fraction of the rung's."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise SequenceError("", f"must be {expected}, got {shorten(value)}")


_as_cooldown = partial(_as_steps, least=2, expected=_COOLDOWN)  # the first step still has the full value
_as_window = partial(_as_steps, least=1, expected=_WINDOW)


def as_weights(value: Any) -> Any:
    """The name of weights, or the decay that they imitate."""
    is_decay = isinstance(value, Mapping) and list(value) == ["decay"] and value["decay"] in SHAPES
    if is_decay or (isinstance(value, str) and value in (UNIFORM, LINEAR)):
        return value
    raise SequenceError("", f"must be {_WEIGHTS}, got {shorten(value)}")


class RungValue(SpecPart):
    """What trials are ranked by at a rung."""

    @abstractmethod
    def check(self, spec: TunedStudy, ladders: list[list[int]]) -> None:
        """Raise `FieldError` if a trial cannot have such a value at a rung. ladders: the rungs of each bracket."""

    @abstractmethod
    def decay_warnings(self, spec: TunedStudy, last: int) -> Iterator[str]:
        """A warning if the learning rate has already decayed before the last rung."""


class CooldownValue(RungValue):
    """Rank trials at a rung by the result of a cooldown that is branched off there."""

    cooldown: Annotated[int | float, PlainValidator(_as_cooldown, json_schema_input_type=int | float)] = Field(
        description=_COOLDOWN
    )
    shape: Literal["linear", "cosine", "sqrt"] = Field(
        default="linear", description="linear, cosine or sqrt: how the sequence falls"
    )
    final: Annotated[Finite, Field(ge=0)] = Field(
        default=0, description="a finite number, 0 or more: what the sequence falls to"
    )
    sequence: str = Field(
        default="lr",
        min_length=1,
        description="the name of the hyper-parameter that falls, including its parameter groups",
    )

    def steps(self, rung: int) -> int:
        """The length of a cooldown at a rung, at least 2; halves are rounded up."""
        return self.cooldown if isinstance(self.cooldown, int) else max(2, int(self.cooldown * rung + 0.5))

    def falls(self, name: str) -> bool:
        """Whether a hyper-parameter is cooled down: the sequence itself, or that of a group, such as `lr.head`."""
        return _is_of(name, self.sequence)

    def check(self, spec: TunedStudy, ladders: list[list[int]]) -> None:
        """Raise `FieldError` if trials have no such sequence, or if it is not a number at a rung."""
        if not any(map(self.falls, spec.search_space.sample(spec.sampling_seed, 0))):
            text = "must be a hyper-parameter of every trial, which falls in a cooldown; there are "
            names = ", ".join(spec.search_space.hyper_parameters)
            raise FieldError("tuner.rung_value.sequence", f"{text}{names}, got {self.sequence!r}")
        ends = sorted({step for rungs in ladders for step in (rungs[0], rungs[-1])})
        for name in filter(self.falls, spec.search_space.hyper_parameters):
            for sequence, _ in islice(spec.search_space.examples(name), 1000):
                for step in ends:
                    if isinstance(value := sequence.at(step), str | bool):
                        text = f"must be numbers that can fall, and {name} is {value!r} at step {step}"
                        raise FieldError("tuner.rung_value.sequence", text)

    def decay_warnings(self, spec: TunedStudy, last: int) -> Iterator[str]:
        return _decay_warnings(spec, last, self.sequence, "a cooldown")


class MergeValue(RungValue):
    """Rank trials at a rung by the result of the mean of their last states, for which nothing is trained."""

    merge: int = Field(ge=2, le=1000, strict=True, description="a whole number from 2 to 1000: how many states")
    window: Annotated[int | float, PlainValidator(_as_window, json_schema_input_type=int | float)] = Field(
        default=0.2, description=f"{_WINDOW}: from the first of the states to the last, which is at the rung"
    )
    weights: Annotated[
        str | dict[str, str], PlainValidator(as_weights, json_schema_input_type=str | dict[str, str])
    ] = Field(default=UNIFORM, description=_WEIGHTS)

    def check(self, spec: TunedStudy, ladders: list[list[int]]) -> None:
        """Raise `FieldError` if a trial has passed the first of the states before it is promoted to the rung."""
        for rungs in ladders:
            for before, rung in pairwise((1, *rungs)):
                most, steps = rung - before, window_steps(self.window, rung, self.merge)
                if self.merge - 1 > most:
                    text = f"must be at most {most + 1}, the states from step {before} to the rung of {rung} steps"
                    raise FieldError("tuner.rung_value.merge", f"{text}, got {self.merge}")
                if steps > most:
                    text = f"must come to at most {most} steps at the rung of {rung}, since it begins at step {before}"
                    raise FieldError("tuner.rung_value.window", f"{text} or later, got {self.window}: {steps} steps")

    def decay_warnings(self, spec: TunedStudy, last: int) -> Iterator[str]:
        return _decay_warnings(spec, last, "lr", "a mean of states")


def as_rung_value(value: Any) -> RungValue:
    """The value of a study file. With `merge` it is a mean of states, otherwise a cooldown."""
    if isinstance(value, RungValue):
        return value
    if not isinstance(value, Mapping):
        raise SequenceError("", f"must be an object with cooldown or with merge, got {shorten(value)}")
    if value.keys() >= {"cooldown", "merge"}:
        raise SequenceError("", "must have cooldown or merge, and not both")
    try:
        return (MergeValue if "merge" in value else CooldownValue)(**value)
    except SpecError as error:
        raise SequenceError(error.problems[0].field, error.problems[0].problem) from None


AnyRungValue = Annotated[
    SerializeAsAny[RungValue], PlainValidator(as_rung_value, json_schema_input_type=CooldownValue | MergeValue)
]
"""A cooldown or a merge."""


_SAMPLES = 64
"""How many configurations are checked."""


def _decay_warnings(spec: TunedStudy, last: int, sequence: str, value: str) -> Iterator[str]:
    """A warning if a sequence has fallen before step `last`, where `value` is meant to show what a fall brings."""
    drawn = (spec.search_space.sample(spec.sampling_seed, number) for number in range(_SAMPLES))
    trials = [each for each in drawn if any(_decays(each[name], last) for name in each if _is_of(name, sequence))]
    if trials:
        yield (
            f"{sequence} has fallen by itself before step {last} in {len(trials)} of {_SAMPLES} trials, so {value} "
            "there hardly changes them: hold it, as after a warm-up, or leave rung_value out"
        )


def _is_of(name: str, sequence: str) -> bool:
    """Whether a hyper-parameter is a sequence, or that of one of its parameter groups."""
    return name == sequence or name.startswith(f"{sequence}.")


def _decays(sequence: Sequence, last: int) -> bool:
    """Whether the sequence decreases before step `last`."""
    values = [value for step in (last // 4, last // 2, last - 1) if isinstance(value := sequence.at(step), int | float)]
    return bool(values) and max(values) > values[-1]
