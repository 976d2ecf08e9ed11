"""The part of Hydra's override grammar that sweeps: `lr=0.1,0.01`, `lr=tag(log, interval(1e-4, 1e-1))`.

>>> parse("choice(adam, sgd)")
Sweep(kind='choice', values=['adam', 'sgd'], step=1, tags=frozenset())
>>> parse("[1, 2]"), parse("'a, b'"), parse("null")
([1, 2], 'a, b', None)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stagetree.sequences import SequenceError, did_you_mean


@dataclass(frozen=True)
class Sweep:
    """Values to choose from, or the two bounds of a range or interval. kind: `choice`, `range` or `interval`."""

    kind: str
    values: list[Any]
    step: Any = 1
    tags: frozenset[str] = frozenset()


def parse(text: str, place: str = "") -> Any:
    """The value of an override: a value, or a `Sweep`. Raises `SequenceError`."""
    return _Parser(text, place).whole()


_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_CONSTANTS = {"true": True, "false": False, "null": None}
_ENDS = {"(": ")", "[": "]", "{": "}"}


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str, place: str) -> None:
        self._text, self._place, self._at = text.strip(), place, 0

    def whole(self) -> Any:
        values = self._items("")
        if self._at < len(self._text):
            raise self._error(f"does not end after {self._text[: self._at]!r}")
        if len(values) > 1:
            return Sweep("choice", [self._plain(value) for value in values])
        return values[0] if values else ""

    def _error(self, problem: str) -> SequenceError:
        return SequenceError(self._place, f"{problem}, in {self._text!r}")

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Sweep):
            raise self._error("has a sweep inside another: write one of them")
        return value

    def _items(self, end: str) -> list[Any]:
        """Values with commas between them, up to a closing bracket."""
        values: list[Any] = []
        while self._peek() not in ("", end):
            values.append(self._element())
            if self._peek() != ",":
                break
            self._at += 1
        if self._peek() != end:
            raise self._error(f"must have a {end}" if end else f"must not have {self._peek()!r} here")
        self._at += bool(end)
        return values

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _element(self) -> Any:
        first = self._peek()
        if first in "'\"":
            end = self._text.find(first, self._at + 1)
            if end < 0:
                raise self._error("has a quote that is not closed")
            text = self._text[self._at + 1 : end]
            self._at = end + 1
            return text
        if first == "[":
            self._at += 1
            return [self._plain(value) for value in self._items("]")]
        if first == "{":
            raise self._error("has an object: give each of its fields an override of its own")
        word = self._word()
        if self._peek() == "(":
            self._at += 1
            return self._call(word)
        return self._scalar(word)

    def _word(self) -> str:
        """A text without quotes, which ends at a comma or bracket. Backslashes protect these."""
        word = ""
        while (letter := self._text[self._at : self._at + 1]) and letter not in ",()[]{}":
            self._at += 1
            if letter == "\\":
                letter, self._at = self._text[self._at : self._at + 1], self._at + 1
            if letter == "$" and self._text[self._at : self._at + 1] == "{":
                raise self._error("refers to another value: write the value")
            word += letter
        return word.strip()

    def _scalar(self, word: str) -> Any:
        if word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        if _NUMBER.fullmatch(word):
            digits = word.replace("_", "")
            return int(digits) if digits.lstrip("+-").isdigit() else float(digits)
        return word

    # ------------------------------------------------------------------------------------------------------ functions

    def _call(self, name: str) -> Any:
        arguments = self._items(")")
        plain, named = [], {}
        for argument in arguments:
            key, separator, value = argument.partition("=") if isinstance(argument, str) else ("", "", "")
            if separator and key.strip().isidentifier():
                named[key.strip()] = self._scalar(value.strip())
            else:
                plain.append(argument)
        if name in _CASTS:
            return self._cast(_CASTS[name], plain)
        if name not in (known := {"choice", "range", "interval", "tag", "sort", "shuffle"}):
            hint = ": write the values that it stands for" if name == "glob" else did_you_mean(name, known)
            raise self._error(f"has the function {name}, which is not known here{hint}")
        return getattr(self, name)(plain, named)

    def _cast(self, cast: Callable[[Any], Any], arguments: list[Any]) -> Any:
        value = arguments[0] if len(arguments) == 1 else Sweep("choice", arguments)
        if isinstance(value, Sweep):
            return replace(value, values=[cast(each) for each in value.values])
        return cast(value)

    def choice(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        return Sweep("choice", [self._plain(value) for value in values])

    def range(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        start, *rest = values or [named.get("start", 0)]
        if rest or "stop" in named:
            stop, *rest = rest or [named["stop"]]
        else:
            start, stop = 0, start
        return Sweep("range", self._numbers([start, stop]), self._numbers([*rest, named.get("step", 1)])[0])

    def interval(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        bounds = values or [named.get("start"), named.get("end")]
        if len(bounds) != 2:
            raise self._error("must have two bounds in interval(lowest, highest)")
        return Sweep("interval", [float(bound) for bound in self._numbers(bounds)])

    def _numbers(self, values: list[Any]) -> list[Any]:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._error(f"must have numbers, got {value!r}")
        return values

    def tag(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        if not values or not isinstance(values[-1], Sweep):
            raise self._error("must have a sweep as the last in tag(...)")
        return replace(values[-1], tags=frozenset(map(str, values[:-1])))

    def sort(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        sweep = values[0] if len(values) == 1 and isinstance(values[0], Sweep) else Sweep("choice", values)
        if sweep.kind == "choice":
            return replace(sweep, values=sorted(sweep.values, reverse=bool(named.get("reverse"))))
        return sweep

    def shuffle(self, values: list[Any], named: dict[str, Any]) -> Sweep:
        """The order of trials is the tuner's here. A shuffled range is a choice among its values."""
        sweep = values[0] if len(values) == 1 and isinstance(values[0], Sweep) else Sweep("choice", values)
        return replace(sweep, kind="choice", values=listed(sweep)) if sweep.kind == "range" else sweep


def listed(sweep: Sweep) -> list[Any]:
    """The values of a range, without its end."""
    start, stop = sweep.values
    values: list[Any] = []
    while len(values) < 10_000 and (value := start + len(values) * sweep.step) < stop:
        values.append(round(value, 12) if isinstance(value, float) else value)
    return values
