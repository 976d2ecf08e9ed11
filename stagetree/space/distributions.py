"""Distributions: what stands in a space where a value must be chosen.

Each says where in it a number u stands, 0 <= u < 1: that makes draws, and points of a quasi-random sequence. How they
are written is in `stagetree.space.notation`.

>>> LogUniform(1e-4, 1e-1).to_json()
{'loguniform': [0.0001, 0.1]}
>>> Choice((16, 32, 64)).at(0.5)
1
>>> Uniform(0.1, 0.5, step=0.2).listed()
(0.1, 0.3, 0.5)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from statistics import NormalDist
from typing import Any, ClassVar

from stagetree.sequences import Sequence, SequenceError, shares

__all__ = [
    "Choice",
    "Distribution",
    "LogRandInt",
    "LogUniform",
    "Normal",
    "RandInt",
    "Range",
    "SpaceError",
    "Uniform",
]


class SpaceError(SequenceError):
    """A space that cannot be: `field` is the path inside it, `problem` what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included. With a `step`, only numbers that are so many steps above `low`."""

    low: Any
    high: Any
    step: Any = None
    name: ClassVar[str]
    is_whole: ClassVar[bool] = False
    is_log: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Bounds may be written as 0 or 0.0: where it is not of whole numbers, all that is drawn is a float."""
        for name in () if self.is_whole else ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def at(self, u: float) -> Any:
        """The value below which a share `u` of the distribution lies."""
        raise NotImplementedError

    def count(self) -> int | None:
        """How many values there are; None where they are not counted."""
        return None if self.step is None else steps_in(self.low, self.high, self.step) + 1

    def listed(self) -> tuple[Any, ...]:
        """All values, of a range that counts them."""
        return tuple(self.value(number) for number in range(self.count() or 0))

    def value(self, number: int) -> Any:
        """The value so many steps above `low`, without the errors of adding up."""
        exact = Decimal(repr(self.low)) + number * Decimal(repr(self.step))
        return int(exact) if self.is_whole else float(exact)

    def near(self, value: float) -> Any:
        """The value that is nearest to a number."""
        inside = min(max(value, self.low), self.high)
        if self.step is None:
            return inside if self.is_whole else float(inside)
        if self.is_whole and isinstance(inside, int):
            return self.value((2 * (inside - self.low) + self.step) // (2 * self.step))
        return self.value(math.floor((inside - self.low) / self.step + 0.5))

    def holds(self, value: Any) -> bool:
        """Whether it can be drawn."""
        return is_number(value) and not (self.is_whole and not isinstance(value, int)) and self.near(value) == value

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        return {self.name: [self.low, self.high], **({} if self.step is None else {"step": self.step})}


@dataclass(frozen=True, slots=True)
class Uniform(Range):
    """Numbers from `low` to `high`, all alike."""

    name = "uniform"

    def at(self, u: float) -> Any:
        count = self.count()
        if count is not None:
            return self.value(min(int(u * count), count - 1))
        return min(self.low + (self.high - self.low) * u, self.high)


@dataclass(frozen=True, slots=True)
class LogUniform(Range):
    """Numbers from `low` to `high` whose logarithms are uniform; with a `step`, the nearest of those it leaves."""

    name, is_log = "loguniform", True

    def at(self, u: float) -> Any:
        low, high = math.log(self.low), math.log(self.high)
        return self.near(math.exp(low + (high - low) * u))


@dataclass(frozen=True, slots=True)
class RandInt(Uniform):
    """Whole numbers from `low` to `high`, all alike."""

    step: int = 1
    name, is_whole = "randint", True

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.low, self.high], **({} if self.step == 1 else {"step": self.step})}


@dataclass(frozen=True, slots=True)
class LogRandInt(Range):
    """Whole numbers from `low` to `high`, each as likely as the logarithms that are nearest to it are long."""

    step: int = 1
    name, is_whole, is_log = "lograndint", True, True

    def at(self, u: float) -> Any:
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.near(math.exp(low + (high - low) * u))

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.low, self.high]}


TAILS = 4
"""So many standard deviations from its mean a normal distribution ends: it leaves out 6 draws in 100,000."""


@dataclass(frozen=True, slots=True)
class Normal(Range):
    """Numbers around a `mean`, by how many standard deviations `sd` they are away, between `low` and `high`.

    written: its options, as the study file has them.
    """

    mean: float = 0.0
    sd: float = 1.0
    written: tuple[tuple[str, float], ...] = ()
    name = "normal"

    def at(self, u: float) -> Any:
        whole = NormalDist(self.mean, self.sd)
        low, high = whole.cdf(self.low), whole.cdf(self.high)
        share = low + (high - low) * u
        return self.near(whole.inv_cdf(share) if 0 < share < 1 else self.low)

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.mean, self.sd], **dict(self.written)}


@dataclass(frozen=True, slots=True)
class Choice:
    """Options; its values are their numbers. `path` is where they are written: `path[n]`.

    weights: how likely each is beside the others; None for equal chances.
    """

    options: tuple[Any, ...]
    path: str = ""
    weights: tuple[float, ...] | None = None

    @property
    def low(self) -> int:
        """The number of the first option."""
        return 0

    @property
    def high(self) -> int:
        """The number of the last option."""
        return len(self.options) - 1

    def at(self, u: float) -> int:
        """The number of the option at a share `u` of their chances."""
        if self.weights is None:
            return min(int(u * len(self.options)), self.high)
        ends = list(accumulate(self.weights))
        possible = [number for number, weight in enumerate(self.weights) if weight]
        return next((number for number in possible if u * ends[-1] < ends[number]), possible[-1])

    def holds(self, value: Any) -> bool:
        """Whether it is the number of an option."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        weights = {} if self.weights is None else {"weights": list(self.weights)}
        return {"choice": [plain(option) for option in self.options], **weights}


Distribution = Range | Choice


def steps_in(low: float, high: float, step: float) -> int:
    """How many whole steps there are from `low` to `high`."""
    return int((Decimal(repr(high)) - Decimal(repr(low))) // Decimal(repr(step)))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def plain(value: Any) -> Any:
    """The JSON of what was written in Python: sequences and distributions as objects, tuples and arrays as lists."""
    if isinstance(value, Sequence | Distribution):
        return value.to_json()
    if hasattr(value, "model_dump") and not isinstance(value, type):  # of a tuner
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # of NumPy and torch, scalars and arrays
        value = value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple | range) else value


_CLOSE = 1e-9
"""Shares that differ by less are one, rounded twice."""

_LISTED = 10_000
"""A range with more values is tried at its ends alone, for the weights of a mix."""


def weights_of(pattern: Mapping[str, Any], value: Any) -> dict[str, float] | None:
    """Weights, by stream, that the patterns of them allow and that come to a recorded mix; None if there are none.

    Shares do not tell by what all weights were divided, so there may be more than one answer.
    """
    recorded = value.get("value") if isinstance(value, Mapping) else value
    try:
        parts = shares(recorded)
    except ValueError:
        return None
    if not parts.keys() <= pattern.keys():
        return None
    totals = sorted({each / parts[name] for name in parts for each in _bounds(pattern[name])})
    fitting = [total for total in totals if _weights(pattern, parts, total) is not None]
    if not fitting:
        return None
    return _weights(pattern, parts, (fitting[0] + fitting[-1]) / 2) or _weights(pattern, parts, fitting[0])


def _weights(pattern: Mapping[str, Any], parts: Mapping[str, float], total: float) -> dict[str, float] | None:
    """The weights with this sum, if the patterns allow them."""
    by_name = {name: _near(item, parts.get(name, 0.0) * total) for name, item in pattern.items()}
    whole = sum(by_name.values())
    is_close = whole > 0 and all(abs(by_name[name] / whole - parts.get(name, 0.0)) < _CLOSE for name in by_name)
    return by_name if is_close else None


def _bounds(item: Any) -> Iterator[float]:
    """Weights that a pattern allows: all of a list, or the ends of a range."""
    if isinstance(item, Choice):
        for option in item.options:
            yield from _bounds(option)
    elif isinstance(item, Range):
        yield from (item.low, item.high) if (item.count() or _LISTED) >= _LISTED else item.listed()
    elif is_number(item):
        yield item


def _near(item: Any, weight: float) -> Any:
    """The weight that a pattern allows that is nearest to another."""
    if isinstance(item, Choice):
        return min((_near(option, weight) for option in item.options), key=lambda each: abs(each - weight))
    return item.near(weight) if isinstance(item, Range) else item
