"""Elementary functions of the step. Every sequence is made of them.

THE NAMES OF FORMS ARE A STORAGE FORMAT: node ids in every log are hashes of them. Never change `stored_as` or the order
of a form's fields, even when the class is renamed. tests/golden/forms.jsonl holds them.

Equal names mean equal values of equal types: 1 and 1.0 are two values.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from stagetree.sequences.values import Scalar, as_tuples, common_numbers, number_from


class Form(Protocol):
    """An elementary function of the absolute step. Two forms have the same `name` exactly when they are the same."""

    @property
    def name(self) -> str: ...

    @property
    def is_held(self) -> bool:
        """Whether the value is the same at every step."""
        ...

    def at(self, t: int) -> Scalar:
        """The value at the absolute step `t`."""
        ...


_LETTERS = {bool: "b", int: "i", float: "f", str: "s", type(None): "N", tuple: "l"}
"""The first letter of the name of a `Held`, by the type of its value."""


def _letter(value: Scalar) -> str:
    """The same for a value of any type, such as a float of NumPy."""
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
        case tuple():
            return "l"


def power(base: float, exponent: float) -> float:
    """`base ** exponent`, or infinity on overflow."""
    try:
        return float(float(base) ** exponent)
    except OverflowError:
        return math.inf


class _Named:
    """Forms compare by name, because the equality of dataclasses would not tell 1, 1.0 and true apart."""

    __slots__ = ()
    name: str

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Held(_Named):
    """The same value at every step."""

    held: Scalar
    name: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        held = self.held
        if isinstance(held, list):  # from JSON
            held = as_tuples(held)
            object.__setattr__(self, "held", held)
        written = json.dumps(held) if isinstance(held, tuple) else repr(held)
        object.__setattr__(self, "name", f"{_LETTERS.get(type(held)) or _letter(held)}{written}")

    @property
    def is_held(self) -> bool:
        return True

    def at(self, t: int) -> Scalar:
        return self.held


@dataclass(frozen=True, slots=True, eq=False)
class MovingForm(_Named):
    """A form that changes with the step, by its offset u = t - `origin`."""

    stored_as: ClassVar[str]
    numbers: ClassVar[tuple[str, str]]
    """The fields that values are computed from. They are all ints or all floats: see `number_from`."""
    origin: float
    """The absolute step at which u is 0. It may lie between two steps."""
    name: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        first, second = self.numbers
        numbers = dict(zip(self.numbers, common_numbers(getattr(self, first), getattr(self, second)), strict=True))
        for name, value in numbers.items():
            object.__setattr__(self, name, value)
        written = [numbers[name] if name in numbers else float(getattr(self, name)) for name in self.__match_args__]
        object.__setattr__(self, "name", f"{self.stored_as}{written!r}")

    @property
    def is_held(self) -> bool:
        first, second = self.numbers
        return bool(getattr(self, first) == getattr(self, second))

    def at(self, t: int) -> float:
        return number_from(self._value(t - self.origin), getattr(self, self.numbers[0]))

    def _value(self, u: float) -> float:
        """The value at offset `u`. At 0 it must be exactly the initial value, to match the part before."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Line(MovingForm):
    stored_as: ClassVar[str] = "_Line"
    numbers: ClassVar[tuple[str, str]] = ("init", "slope")
    init: float
    slope: float

    def _value(self, u: float) -> float:
        return self.init + self.slope * u

    @property
    def is_held(self) -> bool:
        return self.slope == 0


@dataclass(frozen=True, slots=True, eq=False)
class Geometric(MovingForm):
    stored_as: ClassVar[str] = "_Power"
    numbers: ClassVar[tuple[str, str]] = ("init", "gamma")
    init: float
    gamma: float

    def _value(self, u: float) -> float:
        return self.init * power(self.gamma, u)

    @property
    def is_held(self) -> bool:
        return self.gamma == 1 or self.init == 0


@dataclass(frozen=True, slots=True, eq=False)
class PowerLaw(MovingForm):
    """From `init` at offset 0 towards `low`, which it never reaches: by a power of (u + `scale`) / `scale`."""

    stored_as: ClassVar[str] = "_PowerLaw"
    numbers: ClassVar[tuple[str, str]] = ("init", "low")
    init: float
    low: float
    exponent: float
    scale: int

    def _value(self, u: float) -> float:
        if u == 0:
            return self.init
        return self.low + (self.init - self.low) * power(1 + u / self.scale, self.exponent)


@dataclass(frozen=True, slots=True, eq=False)
class Ramp(MovingForm):
    """Climbs from `low` and has the value `high` at the last of `steps` steps."""

    stored_as: ClassVar[str] = "_Ramp"
    numbers: ClassVar[tuple[str, str]] = ("low", "high")
    low: float
    high: float
    steps: int

    def _value(self, u: float) -> float:
        if u == self.steps - 1:
            return self.high
        return self.low + (self.high - self.low) * (u + 1) / self.steps


@dataclass(frozen=True, slots=True, eq=False)
class Slide(MovingForm):
    """Linear from `first` at offset 0 to `last` at offset `steps`."""

    stored_as: ClassVar[str] = "_Slide"
    numbers: ClassVar[tuple[str, str]] = ("first", "last")
    first: float
    last: float
    steps: int

    def _value(self, u: float) -> float:
        return self.first + (self.last - self.first) * u / self.steps


@dataclass(frozen=True, slots=True, eq=False)
class HalfCosine(MovingForm):
    """Half a cosine from `init` at offset 0 to `low` at offset `period`."""

    stored_as: ClassVar[str] = "_HalfCosine"
    numbers: ClassVar[tuple[str, str]] = ("init", "low")
    init: float
    low: float
    period: float

    def _value(self, u: float) -> float:
        if u == 0:
            return self.init
        return self.low + (self.init - self.low) * (1 + math.cos(math.pi * u / self.period)) / 2


@dataclass(frozen=True, slots=True, eq=False)
class PolynomialDecay(MovingForm):
    stored_as: ClassVar[str] = "_Polynomial"
    numbers: ClassVar[tuple[str, str]] = ("init", "final")
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


@dataclass(frozen=True, slots=True, eq=False)
class OneMinusSqrt(MovingForm):
    """The "1 - sqrt" cool-down of Hägele et al. (2024): from `peak` at offset 0 to `final` at offset `steps`."""

    stored_as: ClassVar[str] = "_OneMinusSqrt"
    numbers: ClassVar[tuple[str, str]] = ("peak", "final")
    peak: float
    final: float
    steps: int

    def _value(self, u: float) -> float:
        if u == 0:
            return self.peak
        return self.final + (self.peak - self.final) * (1 - math.sqrt(u / self.steps))


CURVES: tuple[type[MovingForm], ...] = (
    Line,
    Geometric,
    PowerLaw,
    Ramp,
    Slide,
    HalfCosine,
    PolynomialDecay,
    OneMinusSqrt,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """`form` holds from the absolute step `start` until the next piece starts."""

    start: int
    form: Form
