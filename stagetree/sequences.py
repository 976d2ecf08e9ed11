"""Hyper-parameters as functions of the training step: one class a family, each a list of pieces.

A sequence is defined on steps t = 0, 1, 2, ... . Every family describes itself as *pieces*: from some step on, one
elementary function (a `Form`) holds. Values are computed from the pieces and from nothing else, so two families that
write the same piece give the same numbers bit for bit, and what is equal can be recognised by name.

>>> lr = MultiStep(0.1, [20, 30], 0.1)
>>> lr.at(0), lr.at(20)
(0.1, 0.010000000000000002)
>>> [(piece.start, piece.form) for piece in lr.pieces()][0] == (0, Held(0.1))
True
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from itertools import count, pairwise, takewhile
from typing import Any, ClassVar, Protocol

__all__ = [
    "FAMILIES",
    "Constant",
    "Cosine",
    "Cyclic",
    "Exponential",
    "Form",
    "Held",
    "Linear",
    "MultiStep",
    "Part",
    "Piece",
    "Piecewise",
    "Polynomial",
    "Scalar",
    "Sequence",
    "SequenceError",
    "Values",
    "Warmup",
    "Wsd",
    "parse",
]

Scalar = bool | int | float | str | None


class SequenceError(ValueError):
    """A sequence that cannot be: `field` is the path inside it, `problem` what is wrong and what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field, self.problem = field, problem


# --------------------------------------------------------------------------------------------------------------- forms


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


def _power(base: float, exponent: float) -> float:
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
        return f"{type(self.held).__name__[0]}{self.held!r}"

    @property
    def is_held(self) -> bool:
        return True

    def at(self, t: int) -> Scalar:
        return self.held


@dataclass(frozen=True, slots=True)
class _Curve:
    """A form that moves: at the absolute step `origin`, which may lie between two, its own offset u is 0."""

    origin: float

    @property
    def name(self) -> str:
        return type(self).__name__ + repr([float(getattr(self, field.name)) for field in fields(self)])

    @property
    def is_held(self) -> bool:
        return False

    def at(self, t: int) -> float:
        return _whole(float(self._value(t - self.origin)))

    def _value(self, u: float) -> float:
        """The value at offset `u`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Line(_Curve):
    init: float
    slope: float

    def _value(self, u: float) -> float:
        return self.init + self.slope * u

    @property
    def is_held(self) -> bool:
        return self.slope == 0


@dataclass(frozen=True, slots=True)
class _Power(_Curve):
    init: float
    gamma: float

    def _value(self, u: float) -> float:
        return self.init * _power(self.gamma, u)

    @property
    def is_held(self) -> bool:
        return self.gamma == 1 or self.init == 0


@dataclass(frozen=True, slots=True)
class _Ramp(_Curve):
    """Climbs from `low` so that the last of `steps` steps has the value `high`."""

    low: float
    high: float
    steps: int

    def _value(self, u: float) -> float:
        return self.low + (self.high - self.low) * (u + 1) / self.steps

    @property
    def is_held(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class _Slide(_Curve):
    """Goes from `first` at offset 0 towards `last` at offset `steps`, in a straight line."""

    first: float
    last: float
    steps: int

    def _value(self, u: float) -> float:
        return self.first + (self.last - self.first) * u / self.steps

    @property
    def is_held(self) -> bool:
        return self.first == self.last


@dataclass(frozen=True, slots=True)
class _HalfCosine(_Curve):
    """Falls from `init` at offset 0 towards `low` at offset `period` along half a cosine."""

    init: float
    low: float
    period: float

    def _value(self, u: float) -> float:
        return self.low + (self.init - self.low) * (1 + math.cos(math.pi * u / self.period)) / 2

    @property
    def is_held(self) -> bool:
        return self.init == self.low


@dataclass(frozen=True, slots=True)
class _Polynomial(_Curve):
    init: float
    final: float
    steps: int
    power: float

    def _value(self, u: float) -> float:
        return self.final + (self.init - self.final) * _power(1 - u / self.steps, self.power)

    @property
    def is_held(self) -> bool:
        return self.init == self.final or self.power == 0


@dataclass(frozen=True, slots=True)
class _OneMinusSqrt(_Curve):
    """The "1 - sqrt" cool-down of Hägele et al. (2024): from `peak` at offset 0 towards `final` at offset `steps`."""

    peak: float
    final: float
    steps: int

    def _value(self, u: float) -> float:
        return self.final + (self.peak - self.final) * (1 - math.sqrt(u / self.steps))

    @property
    def is_held(self) -> bool:
        return self.peak == self.final


@dataclass(frozen=True, slots=True)
class Piece:
    """From the absolute step `start` on, until the next piece starts, `form` holds."""

    start: int
    form: Form


# ------------------------------------------------------------------------------------------------------------ families


class Sequence:
    """A hyper-parameter as a function of the step. Subclasses are the families; all are immutable and comparable."""

    family: ClassVar[str]
    __slots__ = ()

    def _pieces(self, origin: int) -> Iterator[Piece]:
        """The pieces in order when step `origin` is its own t = 0. May be infinite, never without change."""
        raise NotImplementedError

    def pieces(self, origin: int = 0) -> Iterator[Piece]:
        """The canonical pieces: no two neighbours are the same, and what does not move is `Held`.

        The first step of a moving form is a value like any other, so it stands as a `Held` of its own: a decay that
        begins at the value held so far shares that step with whoever goes on holding it.
        """
        last = ""
        for piece, end in with_ends(self._pieces(origin)):
            for part in _canonical(piece, end):
                if part.form.name != last:
                    yield part
                    last = part.form.name

    def at(self, t: int) -> Scalar:
        """The value at step `t` >= 0."""
        if t < 0:
            raise ValueError(f"steps count from 0, got {t}")
        return self.take(t + 1, start=t)[0]

    def take(self, steps: int, *, start: int = 0) -> list[Scalar]:
        """The values at steps `start`, ..., `steps` - 1."""
        found: list[Scalar] = []
        for piece, end in with_ends(self.pieces()):
            until = steps if end is None else min(end, steps)
            found += map(piece.form.at, range(max(piece.start, start), until))
            if until == steps:
                break
        return found

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `parse` reads back."""
        return {"family": self.family, **{field.name: _plain(getattr(self, field.name)) for field in _fields(self)}}


def with_ends(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, int | None]]:
    """Each piece with the start of the next, None for the last."""
    before = next(pieces)
    for piece in pieces:
        yield before, piece.start
        before = piece
    yield before, None


def _canonical(piece: Piece, end: int | None) -> Iterator[Piece]:
    if end is not None and end <= piece.start:
        return
    yield Piece(piece.start, Held(piece.form.at(piece.start)))
    if not piece.form.is_held and (end is None or end > piece.start + 1):
        yield Piece(piece.start + 1, piece.form)


def _fields(sequence: Any) -> tuple[Field[Any], ...]:
    return fields(sequence)


def _plain(value: Any) -> Any:
    if isinstance(value, Sequence | Part):
        return value.to_json()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


# The checks raise SequenceError with the field and what would be right.


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SequenceError(name, f"must be a finite number, got {value!r}")


def _check_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SequenceError(name, f"must be a whole number of steps, at least {least}, got {value!r}")


def _check_scalar(name: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str | None):
        raise SequenceError(name, f"must be a number, a string, true, false or null, got {value!r}")
    if isinstance(value, float):
        _check_number(name, value)


def _check_list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SequenceError(name, f"must be a list, got {value!r}")
    return tuple(value)


def _check_milestones(value: Any) -> tuple[int, ...]:
    milestones = _check_list("milestones", value)
    for number, milestone in enumerate(milestones):
        _check_count(f"milestones[{number}]", milestone, least=0)
    for before, after in pairwise(milestones):
        if after <= before:
            raise SequenceError("milestones", f"must rise from one to the next, but {after} comes after {before}")
    return milestones


def _set(frozen: Any, name: str, value: Any) -> None:
    object.__setattr__(frozen, name, value)


@dataclass(frozen=True, slots=True)
class Constant(Sequence):
    """`value` at every step. The value is any JSON scalar."""

    family: ClassVar[str] = "constant"
    value: Scalar

    def __post_init__(self) -> None:
        _check_scalar("value", self.value)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, Held(self.value))


@dataclass(frozen=True, slots=True)
class Values(Sequence):
    """`values[number of milestones <= t]`: one value more than there are milestones."""

    family: ClassVar[str] = "values"
    values: tuple[Scalar, ...]
    milestones: tuple[int, ...]

    def __post_init__(self) -> None:
        _set(self, "values", _check_list("values", self.values))
        _set(self, "milestones", _check_milestones(self.milestones))
        for number, value in enumerate(self.values):
            _check_scalar(f"values[{number}]", value)
        if len(self.values) != len(self.milestones) + 1:
            raise SequenceError(
                "values", f"must be one more than the {len(self.milestones)} milestones, got {len(self.values)}"
            )

    def _pieces(self, origin: int) -> Iterator[Piece]:
        for start, value in zip((0, *self.milestones), self.values, strict=True):
            yield Piece(origin + start, Held(value))


@dataclass(frozen=True, slots=True)
class MultiStep(Sequence):
    """`init * gamma ** (number of milestones <= t)`."""

    family: ClassVar[str] = "multistep"
    init: float
    milestones: tuple[int, ...]
    gamma: float

    def __post_init__(self) -> None:
        _check_number("init", self.init)
        _set(self, "milestones", _check_milestones(self.milestones))
        _check_number("gamma", self.gamma)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        for passed, start in enumerate((0, *self.milestones)):
            yield Piece(origin + start, Held(self.init * _power(self.gamma, passed)))


@dataclass(frozen=True, slots=True)
class Linear(Sequence):
    """`init + slope * t`."""

    family: ClassVar[str] = "linear"
    init: float
    slope: float

    def __post_init__(self) -> None:
        _check_number("init", self.init)
        _check_number("slope", self.slope)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, _Line(origin, self.init, self.slope))


@dataclass(frozen=True, slots=True)
class Exponential(Sequence):
    """`init * gamma ** t`."""

    family: ClassVar[str] = "exponential"
    init: float
    gamma: float

    def __post_init__(self) -> None:
        _check_number("init", self.init)
        _check_number("gamma", self.gamma)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, _Power(origin, self.init, self.gamma))
        if self.gamma == 0:
            yield Piece(origin + 1, Held(0))


@dataclass(frozen=True, slots=True)
class Cosine(Sequence):
    """Cosine annealing with warm restarts (Loshchilov and Hutter 2017, equation 5).

    A period of length P starts at `init` and is `min + (init - min) * (1 + cos(pi * u / P)) / 2` at offset u from its
    start; the first P is `period` steps, each other is the one before times `gamma`.
    """

    family: ClassVar[str] = "cosine"
    init: float
    min: float
    period: float
    gamma: float = 1

    def __post_init__(self) -> None:
        for name in ("init", "min", "period", "gamma"):
            _check_number(name, getattr(self, name))
        if self.period < 2:
            raise SequenceError(
                "period", f"must be at least 2 steps, the first and one that differs, got {self.period!r}"
            )
        if self.gamma < 1:
            raise SequenceError(
                "gamma", f"must be at least 1, so that no period is shorter than the first, got {self.gamma!r}"
            )

    def _pieces(self, origin: int) -> Iterator[Piece]:
        if self.init == self.min:
            yield Piece(origin, Held(self.init))
            return
        start, period = float(origin), float(self.period)
        while math.isfinite(start):
            yield Piece(math.ceil(start), _HalfCosine(start, self.init, self.min, period))
            start, period = start + period, period * self.gamma


@dataclass(frozen=True, slots=True)
class Cyclic(Sequence):
    """A triangle wave (Smith 2017): rises from `init` to `max` in `up` steps, falls back in `down`, and repeats."""

    family: ClassVar[str] = "cyclic"
    init: float
    max: float
    up: int
    down: int

    def __post_init__(self) -> None:
        _check_number("init", self.init)
        _check_number("max", self.max)
        _check_count("up", self.up)
        _check_count("down", self.down)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        if self.init == self.max:
            yield Piece(origin, Held(self.init))
            return
        for start in count(origin, self.up + self.down):
            yield Piece(start, _Slide(start, self.init, self.max, self.up))
            yield Piece(start + self.up, _Slide(start + self.up, self.max, self.init, self.down))


@dataclass(frozen=True, slots=True)
class Polynomial(Sequence):
    """`final + (init - final) * (1 - min(t, steps) / steps) ** power`."""

    family: ClassVar[str] = "polynomial"
    init: float
    final: float
    steps: int
    power: float

    def __post_init__(self) -> None:
        _check_number("init", self.init)
        _check_number("final", self.final)
        _check_count("steps", self.steps)
        _check_number("power", self.power)
        if self.power < 0:
            raise SequenceError("power", f"must not be negative, got {self.power!r}")

    def _pieces(self, origin: int) -> Iterator[Piece]:
        form = _Polynomial(origin, self.init, self.final, self.steps, self.power)
        yield Piece(origin, form)
        yield Piece(origin + self.steps, Held(form.at(origin + self.steps)))


@dataclass(frozen=True, slots=True)
class Warmup(Sequence):
    """For t < steps: `start + (then(0) - start) * (t + 1) / steps`; after that `then`, with its own t from 0."""

    family: ClassVar[str] = "warmup"
    steps: int
    then: Sequence
    start: float = 0

    def __post_init__(self) -> None:
        _set(self, "then", parse(self.then, "then"))
        _check_count("steps", self.steps, least=0)
        _check_number("start", self.start)
        _check_number("then", self.then.at(0))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        if self.steps:
            yield Piece(origin, _Ramp(origin, self.start, self.then.at(0), self.steps))  # type: ignore[arg-type]
        yield from self.then._pieces(origin + self.steps)


_DECAYS: dict[str, Callable[[float, float, float, int], Form]] = {
    "linear": _Slide,
    "cosine": _HalfCosine,
    "sqrt": _OneMinusSqrt,
}


@dataclass(frozen=True, slots=True)
class Wsd(Sequence):
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM): up to `peak`, held until `stable_until`, down to `final`.

    The decay takes `decay` steps and is "linear", "cosine" (half a period) or "sqrt" (1 - sqrt, Hägele et al. 2024).
    """

    family: ClassVar[str] = "wsd"
    peak: float
    warmup: int
    stable_until: int
    decay: int
    final: float = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        _check_number("peak", self.peak)
        _check_count("warmup", self.warmup, least=0)
        _check_count("stable_until", self.stable_until, least=0)
        _check_count("decay", self.decay)
        _check_number("final", self.final)
        if self.stable_until < self.warmup:
            raise SequenceError("stable_until", f"must not be before the end of the warm-up at {self.warmup}")
        if self.shape not in _DECAYS:
            raise SequenceError("shape", f"must be one of {', '.join(_DECAYS)}, got {self.shape!r}")

    def _pieces(self, origin: int) -> Iterator[Piece]:
        decays = origin + self.stable_until
        yield Piece(origin, _Ramp(origin, 0, self.peak, self.warmup) if self.warmup else Held(self.peak))
        yield Piece(origin + self.warmup, Held(self.peak))
        yield Piece(decays, _DECAYS[self.shape](decays, self.peak, self.final, self.decay))
        yield Piece(decays + self.decay, Held(self.final))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a `Piecewise`: `sequence` for `steps` steps, or for ever, from its own t = `skip` on."""

    sequence: Sequence
    steps: int | None = None
    skip: int = 0

    def to_json(self) -> dict[str, Any]:
        steps = {} if self.steps is None else {"steps": self.steps}
        return {**steps, **({"skip": self.skip} if self.skip else {}), "sequence": self.sequence.to_json()}

    def _pieces(self, origin: int) -> Iterator[Piece]:
        """The pieces when the part begins at step `origin`."""
        pieces = self.sequence._pieces(origin - self.skip)
        return _in_force_from(origin, pieces) if self.skip else pieces


def _in_force_from(start: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece, end in with_ends(pieces):
        if end is None or end > start:
            yield Piece(max(piece.start, start), piece.form)


@dataclass(frozen=True, slots=True)
class Piecewise(Sequence):
    """Parts one after the other, each with its own t, from 0 or from `skip`; all but the last say how long they last.

    With `skip`, a part goes on where its sequence would be by then: a schedule changes and keeps its pace.
    """

    family: ClassVar[str] = "piecewise"
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        parts = _check_list("parts", self.parts)
        if not parts:
            raise SequenceError("parts", "must hold at least one part")
        last = len(parts) - 1
        _set(self, "parts", tuple(_part(part, f"parts[{n}]", is_last=n == last) for n, part in enumerate(parts)))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        for part in self.parts:
            end = math.inf if part.steps is None else origin + part.steps
            yield from takewhile(lambda piece, end=end: piece.start < end, part._pieces(origin))  # type: ignore[misc]
            origin += part.steps or 0


def _part(value: Any, path: str, *, is_last: bool) -> Part:
    if isinstance(value, Part):
        part = value
    else:
        if not isinstance(value, Mapping) or "sequence" not in value or value.keys() - {"steps", "sequence", "skip"}:
            raise SequenceError(path, f'must be {{"steps": n, "sequence": s}}, the last without steps, got {value!r}')
        part = Part(parse(value["sequence"], f"{path}.sequence"), value.get("steps"), value.get("skip", 0))
    _check_count(f"{path}.skip", part.skip, least=0)
    if is_last and part.steps is not None:
        raise SequenceError(f"{path}.steps", "must be left out of the last part: it lasts for ever")
    if not is_last:
        _check_count(f"{path}.steps", part.steps)
    return part


FAMILIES: dict[str, type[Sequence]] = {
    cls.family: cls
    for cls in (
        Constant,
        Values,
        MultiStep,
        Linear,
        Exponential,
        Cosine,
        Cyclic,
        Polynomial,
        Warmup,
        Wsd,
        Piecewise,
    )
}


def parse(value: Any, path: str = "") -> Sequence:
    """The sequence that JSON writes: a bare scalar is a constant, an object names its `family` and its fields.

    Raises `SequenceError` whose `field` begins with `path`.
    """
    if isinstance(value, Sequence):
        return value
    if not isinstance(value, Mapping):
        _check_scalar(path, value)
        return Constant(value)
    try:
        return _family(value)(**{name: item for name, item in value.items() if name != "family"})
    except SequenceError as error:
        raise SequenceError(".".join(filter(None, (path, error.field))), error.problem) from None


def _family(value: Mapping[str, Any]) -> type[Sequence]:
    """The class that `value` names, after a look at the names of its fields."""
    name = value.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        raise SequenceError(
            "family", f"must be one of {', '.join(FAMILIES)}, got {name!r}{did_you_mean(name, FAMILIES)}"
        )
    known = _fields(FAMILIES[name])
    for given in sorted(map(str, value.keys() - {"family", *(field.name for field in known)})):
        hint = did_you_mean(given, [field.name for field in known])
        raise SequenceError(given, f"is not a field of {name}, which has {_listed(known)}{hint}")
    for field in known:
        if field.name not in value and field.default is MISSING:
            raise SequenceError(field.name, f"is missing: {name} needs {_listed(known)}")
    return FAMILIES[name]


def _listed(known: tuple[Field[Any], ...]) -> str:
    return ", ".join(field.name for field in known)


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the one it was probably meant to be, if any is close."""
    close = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
