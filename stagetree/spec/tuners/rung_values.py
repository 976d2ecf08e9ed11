"""Cooldown results as the values by which trials are ranked at rungs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from stagetree.sequences import Sequence, SequenceError
from stagetree.spec.errors import FieldError, shorten
from stagetree.spec.fields import Finite, SpecPart
from stagetree.spec.tuners.base import TunedStudy

_COOLDOWN = "a number of steps, at least 2, or a fraction of the rung's, above 0 and below 1"


def as_cooldown(value: Any) -> Any:
    """A number of steps, or a fraction of the rung's. At least 2 steps: the first one still has the full value."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2:
        return value
    raise SequenceError("", f"must be {_COOLDOWN}, got {shorten(value)}")


class RungValue(SpecPart):
    """Rank trials at a rung by the result of a cooldown that is branched off there."""

    cooldown: Annotated[int | float, PlainValidator(as_cooldown, json_schema_input_type=int | float)] = Field(
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
        return name == self.sequence or name.startswith(f"{self.sequence}.")

    def check(self, spec: TunedStudy, rungs: Iterable[int]) -> None:
        """Raise `FieldError` if trials have no such sequence, or if it is not a number at a rung."""
        if not any(map(self.falls, spec.search_space.sample(spec.sampling_seed, 0))):
            text = "must be a hyper-parameter of every trial, which falls in a cooldown; there are "
            names = ", ".join(spec.search_space.hyper_parameters)
            raise FieldError("tuner.rung_value.sequence", f"{text}{names}, got {self.sequence!r}")
        for name in filter(self.falls, spec.search_space.hyper_parameters):
            for sequence, _ in islice(spec.search_space.examples(name), 1000):
                for step in rungs:
                    if isinstance(value := sequence.at(step), str | bool):
                        text = f"must be numbers that can fall, and {name} is {value!r} at step {step}"
                        raise FieldError("tuner.rung_value.sequence", text)

    def decay_warnings(self, spec: TunedStudy, last: int) -> Iterator[str]:
        """A warning if the sequence has already decayed before the last rung."""
        drawn = (spec.search_space.sample(spec.sampling_seed, number) for number in range(_SAMPLES))
        trials = [each for each in drawn if any(_decays(each[name], last) for name in each if self.falls(name))]
        if trials:
            yield (
                f"{self.sequence} has fallen by itself before step {last} in {len(trials)} of {_SAMPLES} trials, so a "
                "cooldown there hardly changes them: hold it, as after a warm-up, or leave rung_value out"
            )


_SAMPLES = 64
"""How many configurations are checked."""


def _decays(sequence: Sequence, last: int) -> bool:
    """Whether the sequence decreases before step `last`."""
    values = [value for step in (last // 4, last // 2, last - 1) if isinstance(value := sequence.at(step), int | float)]
    return bool(values) and max(values) > values[-1]
