"""Distributions: what stands in a space where a value must be chosen.

Each says where in it a number u stands, 0 <= u < 1: that makes draws, and points of a quasi-random sequence.

>>> loguniform(1e-4, 1e-1).to_json()
{'loguniform': [0.0001, 0.1]}
>>> choice([16, 32, 64]).at(0.5)
1
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stagetree.sequences import Sequence, SequenceError, is_fraction

__all__ = [
    "Choice",
    "Distribution",
    "LogUniform",
    "RandInt",
    "SpaceError",
    "Uniform",
    "choice",
    "loguniform",
    "randint",
    "uniform",
]


class SpaceError(SequenceError):
    """A space that cannot be: `field` is the path inside it, `problem` what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Numbers from `low` to `high`, all alike."""

    low: float
    high: float

    def at(self, u: float) -> float:
        """The value below which a share `u` of the distribution lies."""
        return min(self.low + (self.high - self.low) * u, self.high)

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        return {"uniform": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Numbers from `low` to `high` whose logarithms are uniform."""

    low: float
    high: float

    def at(self, u: float) -> float:
        """The value below which a share `u` of the distribution lies."""
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + (high - low) * u), self.low), self.high)

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        return {"loguniform": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class RandInt:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def at(self, u: float) -> int:
        """The value below which a share `u` of the distribution lies."""
        return min(self.low + int(u * (self.high - self.low + 1)), self.high)

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        return {"randint": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class Choice:
    """Options with equal chances; its values are their numbers. `path` is where they are written: `path[n]`."""

    options: tuple[Any, ...]
    path: str = ""

    @property
    def low(self) -> int:
        """The number of the first option."""
        return 0

    @property
    def high(self) -> int:
        """The number of the last option."""
        return len(self.options) - 1

    def at(self, u: float) -> int:
        """The number of the option at a share `u` of them."""
        return min(int(u * len(self.options)), self.high)

    def to_json(self) -> dict[str, Any]:
        """As a study file writes it."""
        return {"choice": [plain(option) for option in self.options]}


Distribution = Uniform | LogUniform | RandInt | Choice


def uniform(low: float, high: float) -> Uniform:
    """Numbers from `low` to `high`, all alike. Raises `SpaceError`."""
    return read_uniform([low, high], "uniform")


def loguniform(low: float, high: float) -> LogUniform:
    """Numbers from `low` to `high`, above 0, whose logarithms are uniform. Raises `SpaceError`."""
    return read_loguniform([low, high], "loguniform")


def randint(low: int, high: int) -> RandInt:
    """Whole numbers from `low` to `high`, both included. Raises `SpaceError`."""
    return read_randint([low, high], "randint")


def choice(options: Iterable[Any]) -> Choice:
    """One of the options, with equal chances: values, sequences, or distributions again. Raises `SpaceError`."""
    options = tuple(options)
    if not options:
        raise SpaceError("choice", "must be a list of at least one option, got none")
    return Choice(options)


# ------------------------------------------------------------------------------------------------------------- reading


def _read_bounds(value: Any, path: str) -> tuple[Any, Any]:
    value = plain(value)
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_number, value)):
        raise SpaceError(path, f"must be [lowest, highest], two finite numbers, got {value!r}")
    low, high = value
    if high < low:
        raise SpaceError(path, f"must be [lowest, highest], but {low!r} is more than {high!r}")
    return low, high


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_uniform(value: Any, path: str) -> Uniform:
    """`[low, high]` at `path`. Raises `SpaceError`."""
    return Uniform(*_read_bounds(value, path))


def read_loguniform(value: Any, path: str) -> LogUniform:
    """`[low, high]` at `path`, both above 0. Raises `SpaceError`."""
    low, high = _read_bounds(value, path)
    if low <= 0:
        raise SpaceError(path, f"must have bounds above 0, since their logarithms are used, got {value!r}")
    return LogUniform(low, high)


def read_randint(value: Any, path: str) -> RandInt:
    """`[low, high]` at `path`, two whole numbers. Raises `SpaceError`."""
    low, high = _read_bounds(value, path)
    if not (isinstance(low, int) and isinstance(high, int)):
        raise SpaceError(path, f"must be [lowest, highest], two whole numbers, got {value!r}")
    return RandInt(low, high)


def plain(value: Any) -> Any:
    """The JSON of what was written in Python: sequences and distributions as objects, tuples and arrays as lists."""
    if isinstance(value, Sequence | Distribution):
        return value.to_json()
    if hasattr(value, "model_dump"):  # of a tuner
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):  # of NumPy and torch, scalars and arrays
        value = value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


READERS: dict[str, Callable[[Any, str], Distribution]] = {
    "uniform": read_uniform,
    "loguniform": read_loguniform,
    "randint": read_randint,
}
"""How what stands behind a name is read; `choice`, whose options are patterns again, is read by `stagetree.space`."""


Values = dict[str, Any]


def values_of(pattern: Any, path: str, value: Any, steps: int | None = None) -> Values | None:
    """The values, by place, with which a pattern becomes JSON; None if it cannot become that.

    steps: of the trial, for the fractions in the pattern.
    """
    value = bare(pattern, value)
    match pattern:
        case Choice(options=options):
            inside = [values_of(option, f"{path}[{number}]", value, steps) for number, option in enumerate(options)]
            return _chosen(pattern, inside, path)
        case Uniform() | LogUniform() | RandInt():
            return _drawn(pattern, value, path)
        case dict():
            if not isinstance(value, Mapping) or not pattern.keys() <= value.keys():
                return None
            return _joined(
                [_inside(item, f"{path}.{name}", value[name], value, steps) for name, item in pattern.items()]
            )
        case list():
            if not isinstance(value, list) or len(value) != len(pattern):
                return None
            pairs = enumerate(zip(pattern, value, strict=True))
            return _joined([_inside(item, f"{path}[{number}]", old, {}, steps) for number, (item, old) in pairs])
    return {} if pattern == value else None


def _inside(item: Any, path: str, value: Any, owner: Mapping[str, Any], steps: int | None) -> Values | None:
    """The values in a field of `owner`, or in an item of a list."""
    if not is_fraction(item):
        return values_of(item, path, value, steps)
    whole = owner.get(item["of"]) if "of" in item else steps
    return None if not whole else _ratio(item["ratio"], f"{path}.ratio", value, whole)


def _ratio(pattern: Any, path: str, value: Any, whole: float) -> Values | None:
    """The values with which a fraction of `whole` is `value`; of all ratios that round to it, the one between."""
    if isinstance(pattern, Choice):
        inside = [_ratio(option, f"{path}[{n}]", value, whole) for n, option in enumerate(pattern.options)]
        return _chosen(pattern, inside, path)
    is_drawn = isinstance(pattern, Uniform | LogUniform)
    ratio = min(max(value / whole, pattern.low), pattern.high) if is_drawn else pattern
    if math.floor(ratio * whole + 0.5) != value:
        return None
    return _drawn(pattern, ratio, path) if is_drawn else {}


def _chosen(choice: Choice, inside: list[Values | None], path: str) -> Values | None:
    """The number of the first option that fits, and the values inside it."""
    for number, values in enumerate(inside):
        if values is not None:
            return ({path: number} if choice.low < choice.high else {}) | values
    return None


def _drawn(distribution: Uniform | LogUniform | RandInt, value: Any, path: str) -> Values | None:
    kind = int if isinstance(distribution, RandInt) else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not distribution.low <= value <= distribution.high:
        return None
    return {path: value} if distribution.low < distribution.high else {}


def _joined(parts: list[Values | None]) -> Values | None:
    joined: Values = {}
    for part in parts:
        if part is None:
            return None
        joined |= part
    return joined


def bare(pattern: Any, value: Any) -> Any:
    """A constant as its bare value, unless the pattern spells the family out."""
    is_constant = isinstance(value, Mapping) and value.get("family") == "constant"
    return value["value"] if is_constant and not isinstance(pattern, dict | Choice) else value
