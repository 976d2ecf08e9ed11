"""Elementary functions of the step, of which all sequences are made.

THE NAMES OF FORMS ARE THE STORAGE FORMAT: the ids of nodes, in every log there is, are hashes of them. `stored_as`
and the order of a form's fields never change, whatever becomes of its class. tests/golden/forms.jsonl holds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

Scalar = bool | int | float | str | None


class Form(Protocol):
    """An elementary function of the absolute step. Its `name` is equal for two forms exactly when they are the same."""

    @property
    def name(self) -> str: ...

    @property
    def is_held(self) -> bool:
        """True when the value is the same at every step."""
        ...

    def at(self, t: int) -> Scalar:
        """The value at the absolute step `t`."""
        ...


def _whole(value: float) -> float:
    """A float that is a whole number as the integer it equals, so that 64.0 and 64 are one value, as in JSON."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _letter(value: Scalar) -> str:
    """What kind of value a `Held` holds, as its name begins."""
    match value:
        case bool():
            return "b"
        case int():
            return "i"
        case float():
            return "f"
        case str():
            return "s"
        case None:
            return "N"


def power(base: float, exponent: float) -> float:
    """`base ** exponent`, infinite where it is too large for a float."""
    try:
        return float(float(base) ** exponent)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Held:
    """One value for as long as the piece lasts."""

    held: Scalar

    def __post_init__(self) -> None:
        if isinstance(self.held, float):
            object.__setattr__(self, "held", _whole(self.held))

    @property
    def name(self) -> str:
        return f"{_letter(self.held)}{self.held!r}"

    @property
    def is_held(self) -> bool:
        return True

    def at(self, t: int) -> Scalar:
        return self.held


@dataclass(frozen=True, slots=True)
class MovingForm:
    """A form that moves: at the absolute step `origin`, which may lie between two, its own offset u is 0."""

    stored_as: ClassVar[str]
    origin: float

    @property
    def name(self) -> str:
        return self.stored_as + repr([float(getattr(self, field.name)) for field in fields(self)])

    @property
    def is_held(self) -> bool:
        return False

    def at(self, t: int) -> float:
        return _whole(float(self._value(t - self.origin)))

    def _value(self, u: float) -> float:
        """The value at offset `u`: at 0 what it begins with, to the last bit, so that it is that of the part before."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Line(MovingForm):
    stored_as: ClassVar[str] = "_Line"
    init: float
    slope: float

    def _value(self, u: float) -> float:
        return self.init + self.slope * u

    @property
    def is_held(self) -> bool:
        return self.slope == 0


@dataclass(frozen=True, slots=True)
class Power(MovingForm):
    stored_as: ClassVar[str] = "_Power"
    init: float
    gamma: float

    def _value(self, u: float) -> float:
        return self.init * power(self.gamma, u)

    @property
    def is_held(self) -> bool:
        return self.gamma == 1 or self.init == 0


@dataclass(frozen=True, slots=True)
class Ramp(MovingForm):
    """Climbs from `low` so that the last of `steps` steps has the value `high`."""

    stored_as: ClassVar[str] = "_Ramp"
    low: float
    high: float
    steps: int

    def _value(self, u: float) -> float:
        if u == self.steps - 1:
            return self.high
        return self.low + (self.high - self.low) * (u + 1) / self.steps

    @property
    def is_held(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Slide(MovingForm):
    """Goes from `first` at offset 0 towards `last` at offset `steps`, in a straight line."""

    stored_as: ClassVar[str] = "_Slide"
    first: float
    last: float
    steps: int

    def _value(self, u: float) -> float:
        return self.first + (self.last - self.first) * u / self.steps

    @property
    def is_held(self) -> bool:
        return self.first == self.last


@dataclass(frozen=True, slots=True)
class HalfCosine(MovingForm):
    """Falls from `init` at offset 0 towards `low` at offset `period` along half a cosine."""

    stored_as: ClassVar[str] = "_HalfCosine"
    init: float
    low: float
    period: float

    def _value(self, u: float) -> float:
        if u == 0:
            return self.init
        return self.low + (self.init - self.low) * (1 + math.cos(math.pi * u / self.period)) / 2

    @property
    def is_held(self) -> bool:
        return self.init == self.low


@dataclass(frozen=True, slots=True)
class PolynomialDecay(MovingForm):
    stored_as: ClassVar[str] = "_Polynomial"
    init: float
    final: float
    steps: int
    power: float

    def _value(self, u: float) -> float:
        if u == 0:
            return self.init
        return self.final + (self.init - self.final) * power(1 - u / self.steps, self.power)

    @property
    def is_held(self) -> bool:
        return self.init == self.final or self.power == 0


@dataclass(frozen=True, slots=True)
class OneMinusSqrt(MovingForm):
    """The "1 - sqrt" cool-down of Hägele et al. (2024): from `peak` at offset 0 towards `final` at offset `steps`."""

    stored_as: ClassVar[str] = "_OneMinusSqrt"
    peak: float
    final: float
    steps: int

    def _value(self, u: float) -> float:
        if u == 0:
            return self.peak
        return self.final + (self.peak - self.final) * (1 - math.sqrt(u / self.steps))

    @property
    def is_held(self) -> bool:
        return self.peak == self.final


CURVES: tuple[type[MovingForm], ...] = (Line, Power, Ramp, Slide, HalfCosine, PolynomialDecay, OneMinusSqrt)
"""All forms that move."""


@dataclass(frozen=True, slots=True)
class Piece:
    """From the absolute step `start` on, until the next piece starts, `form` holds."""

    start: int
    form: Form
