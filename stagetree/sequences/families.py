"""The elementary families, which contain no other sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from stagetree.sequences.base import (
    Sequence,
    check_count,
    check_list,
    check_milestones,
    check_number,
    pieces_from,
    read_scalar,
    set_field,
)
from stagetree.sequences.composed import DECAYS, check_shape
from stagetree.sequences.forms import (
    Geometric,
    HalfCosine,
    Held,
    Line,
    Piece,
    PolynomialDecay,
    PowerLaw,
    Ramp,
    Slide,
    power,
)
from stagetree.sequences.values import Scalar, SequenceError, common_numbers, number_from

_FURTHEST = 2.0**53
"""Beyond this step, neighbouring floats are more than a step apart, so adding a period may not advance."""

_MOST_PASSED = 20_000
"""The maximum number of periods added up to find the one in which a part begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Sequence):
    """`value` at every step. The value is any JSON scalar, a list of them, or a mix of streams."""

    family: ClassVar[str] = "constant"
    value: Scalar

    def __post_init__(self) -> None:
        set_field(self, "value", read_scalar("value", self.value))

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, Held(self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Values(Sequence):
    """`values[number of milestones <= t]`. There is one value more than there are milestones."""

    family: ClassVar[str] = "values"
    values: tuple[Scalar, ...]
    milestones: tuple[int, ...]

    def __post_init__(self) -> None:
        values = check_list("values", self.values)
        set_field(self, "values", tuple(read_scalar(f"values[{n}]", value) for n, value in enumerate(values)))
        set_field(self, "milestones", check_milestones(self.milestones))
        if len(self.values) != len(self.milestones) + 1:
            raise SequenceError(
                "values", f"must be one more than the {len(self.milestones)} milestones, got {len(self.values)}"
            )

    def _pieces(self, origin: int) -> Iterator[Piece]:
        for start, value in zip((0, *self.milestones), self.values, strict=True):
            yield Piece(origin + start, Held(value))


@dataclass(frozen=True, slots=True, eq=False)
class MultiStep(Sequence):
    """`init * gamma ** (number of milestones <= t)`."""

    family: ClassVar[str] = "multistep"
    init: float
    milestones: tuple[int, ...]
    gamma: float

    def __post_init__(self) -> None:
        check_number("init", self.init)
        set_field(self, "milestones", check_milestones(self.milestones))
        check_number("gamma", self.gamma)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        init, gamma = common_numbers(self.init, self.gamma)
        for passed, start in enumerate((0, *self.milestones)):
            yield Piece(origin + start, Held(number_from(init * power(gamma, passed), init)))


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Sequence):
    """`init + slope * t`."""

    family: ClassVar[str] = "linear"
    init: float
    slope: float

    def __post_init__(self) -> None:
        check_number("init", self.init)
        check_number("slope", self.slope)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, Line(origin, self.init, self.slope))


@dataclass(frozen=True, slots=True, eq=False)
class Exponential(Sequence):
    """`init * gamma ** t`."""

    family: ClassVar[str] = "exponential"
    init: float
    gamma: float

    def __post_init__(self) -> None:
        check_number("init", self.init)
        check_number("gamma", self.gamma)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        yield Piece(origin, Geometric(origin, self.init, self.gamma))
        if self.gamma == 0:
            init, _ = common_numbers(self.init, self.gamma)
            yield Piece(origin + 1, Held(number_from(0, init)))


@dataclass(frozen=True, slots=True, eq=False)
class Cosine(Sequence):
    """Cosine annealing with warm restarts (Loshchilov and Hutter 2017, equation 5).

    A period of length P starts at `init` and is `min + (init - min) * (1 + cos(pi * u / P)) / 2` at offset u from its
    start. The first period takes `period` steps, and each later one `gamma` times the steps of the one before.
    """

    family: ClassVar[str] = "cosine"
    init: float
    min: float
    period: float
    gamma: float = 1

    def __post_init__(self) -> None:
        for name in ("init", "min", "period", "gamma"):
            check_number(name, getattr(self, name))
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
            yield Piece(origin, Held(common_numbers(self.init, self.min)[0]))
            return
        yield from self._periods(float(origin), float(self.period))

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        if self.init == self.min:
            return self._pieces(since)
        start, period = self._period_at(float(origin), since)
        return pieces_from(since, self._periods(start, period))

    def _period_at(self, start: float, since: int) -> tuple[float, float]:
        """The start and length of the period that contains step `since`, with the same rounding as `_periods`."""
        period = float(self.period)
        if self.gamma == 1 and period.is_integer():  # sums of whole numbers are exact, so no loop is needed
            return start + (since - start) // period * period, period
        for _ in range(_MOST_PASSED):
            if start + period > since:
                return start, period
            start, period = start + period, period * self.gamma
        raise SequenceError("skip", f"must pass over at most {_MOST_PASSED:,} periods of a cosine")

    def _periods(self, start: float, period: float) -> Iterator[Piece]:
        while True:
            yield Piece(math.ceil(start), HalfCosine(start, self.init, self.min, period))
            start, period = start + period, period * self.gamma
            if start > _FURTHEST:
                return


@dataclass(frozen=True, slots=True, eq=False)
class Cyclic(Sequence):
    """A triangle wave (Smith 2017): rises from `init` to `max` in `up` steps, falls back in `down`, and repeats."""

    family: ClassVar[str] = "cyclic"
    init: float
    max: float
    up: int
    down: int

    def __post_init__(self) -> None:
        check_number("init", self.init)
        check_number("max", self.max)
        check_count("up", self.up)
        check_count("down", self.down)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        if self.init == self.max:
            yield Piece(origin, Held(common_numbers(self.init, self.max)[0]))
            return
        for start in count(origin, self.up + self.down):
            yield Piece(start, Slide(start, self.init, self.max, self.up))
            yield Piece(start + self.up, Slide(start + self.up, self.max, self.init, self.down))

    def _pieces_since(self, origin: int, since: int) -> Iterator[Piece]:
        passed = (since - origin) // (self.up + self.down)
        return pieces_from(since, self._pieces(origin + passed * (self.up + self.down)))


@dataclass(frozen=True, slots=True, eq=False)
class Polynomial(Sequence):
    """`final + (init - final) * (1 - min(t, steps) / steps) ** power`."""

    family: ClassVar[str] = "polynomial"
    init: float
    final: float
    steps: int
    power: float

    def __post_init__(self) -> None:
        check_number("init", self.init)
        check_number("final", self.final)
        check_count("steps", self.steps)
        check_number("power", self.power)
        if self.power < 0:
            raise SequenceError("power", f"must not be negative, got {self.power!r}")

    def _pieces(self, origin: int) -> Iterator[Piece]:
        form = PolynomialDecay(origin, self.init, self.final, self.steps, self.power)
        yield Piece(origin, form)
        yield Piece(origin + self.steps, Held(form.at(origin + self.steps)))


@dataclass(frozen=True, slots=True, eq=False)
class InverseSqrt(Sequence):
    """Warm-up, then down by the square root of the step: `min + (peak - min) * sqrt(warmup / (t + 1))`.

    The schedule of Vaswani et al. (2017); with a decay that of Zhai et al. (2022, Scaling Vision Transformers). The
    warm-up reaches `peak` in its last step. From step `decay_start` on the value falls to `final` within `decay` steps,
    in the shapes of `Wsd`; with `decay` 0, it never does. If the trial's length is given, `decay_start` may be left
    out: the decay then ends with the trial. Trials of all lengths share the curve, and branch off it where their decays
    begin.
    """

    family: ClassVar[str] = "inverse_sqrt"
    peak: float
    warmup: int
    decay: int = 0
    decay_start: int | None = None
    min: float = 0
    final: float = 0
    shape: str = "linear"

    def __post_init__(self) -> None:
        for name in ("peak", "min", "final"):
            check_number(name, getattr(self, name))
        check_count("warmup", self.warmup)
        check_count("decay", self.decay, least=0)
        self._check_decay_start()
        check_shape(self.shape, DECAYS)

    def _check_decay_start(self) -> None:
        start = self.decay_start
        if self.decay and start is None:
            raise SequenceError("decay_start", f"is missing: the step at which the {self.decay} steps of decay begin")
        if start is None:
            return
        if not self.decay:
            raise SequenceError("decay", f"is missing: the steps of the decay that begins at {start!r}")
        check_count("decay_start", start, least=0)
        if start < self.warmup:
            raise SequenceError("decay_start", f"must not be before the end of the warm-up at {self.warmup}")

    @classmethod
    def length_field(cls, written: Mapping[str, Any]) -> str | None:
        return "decay_start" if written.get("decay") else None

    @classmethod
    def fill_length_field(cls, written: Mapping[str, Any], steps: int) -> dict[str, Any]:
        decay = written.get("decay")
        return {**written, "decay_start": steps - decay} if isinstance(decay, int) else dict(written)

    @property
    def _exponent(self) -> float:
        return -0.5

    def decay_span(self) -> tuple[int, int] | None:
        return None if self.decay_start is None else (self.decay_start, self.decay_start + self.decay)

    def _pieces(self, origin: int) -> Iterator[Piece]:
        peak, low, final = common_numbers(self.peak, self.min, self.final)
        curve = PowerLaw(origin + self.warmup - 1, peak, low, self._exponent, self.warmup)
        yield Piece(origin, Ramp(origin, 0, peak, self.warmup))
        yield Piece(origin + self.warmup, curve)
        if self.decay_start is not None:
            start = origin + self.decay_start
            yield Piece(start, DECAYS[self.shape](start, curve.at(start), final, self.decay))
            yield Piece(start + self.decay, Held(final))


@dataclass(frozen=True, slots=True, eq=False)
class Power(InverseSqrt):
    """Warm-up, then down by a power of the step: `min + (peak - min) * ((t + 1) / warmup) ** exponent`.

    The `PowerLR` of OLMo-core (https://github.com/allenai/OLMo-core/pull/674), whose `b` is `exponent`, after Shen et
    al. (2024, Power Scheduler). All else is as in `InverseSqrt`, which has an exponent of -0.5.
    """

    family: ClassVar[str] = "power"
    exponent: float = -0.51

    def __post_init__(self) -> None:
        InverseSqrt.__post_init__(self)
        check_number("exponent", self.exponent)
        if self.exponent >= 0:
            raise SequenceError("exponent", f"must be below 0, got {self.exponent!r}")

    @property
    def _exponent(self) -> float:
        return self.exponent
