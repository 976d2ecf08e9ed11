"""Distributions: the values that a space leaves open.

Each maps a number u, 0 <= u < 1, to a value. That serves random and quasi-random samples alike. See
`stagetree.space.notation` for their JSON.

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


class SpaceError(SequenceError):
    """An invalid space: `field` is the path inside it, `problem` a sentence about the error."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included. With a `step`, only `low` plus multiples of it."""

    low: Any
    high: Any
    step: Any = None
    name: ClassVar[str]
    is_whole: ClassVar[bool] = False
    is_log: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Convert the bounds to floats unless the range is of whole numbers, so that 0 and 0.0 mean the same."""
        for name in () if self.is_whole else ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def at(self, u: float) -> Any:
        """The quantile function: the value below which a share `u` of the distribution lies."""
        raise NotImplementedError

    def count(self) -> int | None:
        """The number of values; None if they cannot be counted."""
        return None if self.step is None else steps_in(self.low, self.high, self.step) + 1

    def listed(self) -> tuple[Any, ...]:
        """All values of a countable range."""
        return tuple(self.value(number) for number in range(self.count() or 0))

    def value(self, number: int) -> Any:
        """The value `number` steps above `low`, without accumulated rounding errors."""
        exact = Decimal(repr(self.low)) + number * Decimal(repr(self.step))
        return int(exact) if self.is_whole else float(exact)

    def near(self, value: float) -> Any:
        """The closest value in the range."""
        inside = min(max(value, self.low), self.high)
        if self.step is None:
            return inside if self.is_whole else float(inside)
        if self.is_whole and isinstance(inside, int):
            return self.value((2 * (inside - self.low) + self.step) // (2 * self.step))
        return self.value(math.floor((inside - self.low) / self.step + 0.5))

    def holds(self, value: Any) -> bool:
        """Whether the value can be sampled."""
        return is_number(value) and not (self.is_whole and not isinstance(value, int)) and self.near(value) == value

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.low, self.high], **({} if self.step is None else {"step": self.step})}


@dataclass(frozen=True, slots=True)
class Uniform(Range):
    """Uniform numbers from `low` to `high`."""

    name = "uniform"

    def at(self, u: float) -> Any:
        count = self.count()
        if count is not None:
            return self.value(min(int(u * count), count - 1))
        return min(self.low + (self.high - self.low) * u, self.high)


@dataclass(frozen=True, slots=True)
class LogUniform(Range):
    """Log-uniform numbers from `low` to `high`. With a `step`, each sample is rounded to it."""

    name, is_log = "loguniform", True

    def at(self, u: float) -> Any:
        low, high = math.log(self.low), math.log(self.high)
        return self.near(math.exp(low + (high - low) * u))


@dataclass(frozen=True, slots=True)
class RandInt(Uniform):
    """Uniform whole numbers from `low` to `high`."""

    step: int = 1
    name, is_whole = "randint", True

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.low, self.high], **({} if self.step == 1 else {"step": self.step})}


@dataclass(frozen=True, slots=True)
class LogRandInt(Range):
    """Log-uniform whole numbers from `low` to `high`: each gets the samples that round to it."""

    step: int = 1
    name, is_whole, is_log = "lograndint", True, True

    def at(self, u: float) -> Any:
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.near(math.exp(low + (high - low) * u))

    def to_json(self) -> dict[str, Any]:
        return {self.name: [self.low, self.high]}


TAILS = 4
"""Where a normal distribution is cut, in standard deviations. This leaves out 6 samples in 100,000."""


@dataclass(frozen=True, slots=True)
class Normal(Range):
    """A truncated normal distribution between `low` and `high`."""

    mean: float = 0.0
    sd: float = 1.0
    written: tuple[tuple[str, float], ...] = ()
    """The options as the study file has them."""
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
    """Options to choose from. Its values are the numbers of the options."""

    options: tuple[Any, ...]
    path: str = ""
    """Where the options are written: `path[n]`."""
    weights: tuple[float, ...] | None = None
    """How likely each option is relative to the others; None for equal chances."""

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return len(self.options) - 1

    def at(self, u: float) -> int:
        """The number of the option in which the cumulated share `u` lies."""
        if self.weights is None:
            return min(int(u * len(self.options)), self.high)
        ends = list(accumulate(self.weights))
        possible = [number for number, weight in enumerate(self.weights) if weight]
        return next((number for number in possible if u * ends[-1] < ends[number]), possible[-1])

    def holds(self, value: Any) -> bool:
        """Whether the value is the number of an option."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        weights = {} if self.weights is None else {"weights": list(self.weights)}
        return {"choice": [plain(option) for option in self.options], **weights}


Distribution = Range | Choice


def steps_in(low: float, high: float, step: float) -> int:
    """How many whole steps fit between `low` and `high`."""
    return int((Decimal(repr(high)) - Decimal(repr(low))) // Decimal(repr(step)))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number. Booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def plain(value: Any) -> Any:
    """Convert Python objects to JSON: sequences and distributions to objects, tuples and arrays to lists."""
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
"""Shares that differ by less are equal up to rounding."""

_LISTED = 10_000
"""For the weights of a mix, only the ends of a longer range are tried."""


def weights_of(pattern: Mapping[str, Any], value: Any) -> dict[str, float] | None:
    """Weights, by stream, that the patterns allow and that give a recorded mix; None if there are none.

    Shares do not determine the sum of the weights, so there may be several answers.
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
    """The candidate weights of a pattern: all options of a list, or the ends of a range."""
    if isinstance(item, Choice):
        for option in item.options:
            yield from _bounds(option)
    elif isinstance(item, Range):
        yield from (item.low, item.high) if (item.count() or _LISTED) >= _LISTED else item.listed()
    elif is_number(item):
        yield item


def _near(item: Any, weight: float) -> Any:
    """The closest weight that the pattern allows."""
    if isinstance(item, Choice):
        return min((_near(option, weight) for option in item.options), key=lambda each: abs(each - weight))
    return item.near(weight) if isinstance(item, Range) else item
