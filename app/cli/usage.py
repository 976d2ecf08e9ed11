"""What is said of a command that was typed wrong: what would be right, in words of people."""

from __future__ import annotations

import re
from typing import Any

import typer


def in_words(error: typer.BadParameter) -> str:
    """The message of an error about an option or an argument, for those that speak of ranges and of nothing at all."""
    param: Any = error.param
    if param is None:
        return error.message
    if not error.message:
        return getattr(param, "help", None) or ""
    wrong = re.match(r"'?(.*?)'? is not (a valid (int|float)|in the range)", error.message)
    if wrong is None or not hasattr(param.type, "min"):
        return error.message
    number = "a whole number" if wrong.group(3) == "int" or "int" in param.type.name else "a number"
    return f"must be {number}{_between(param.type)}, got {wrong.group(1)!r}"


def _between(type: Any) -> str:
    if type.min is None:
        return f" of at most {type.max}"
    return f" of at least {type.min}" if type.max is None else f" from {type.min} to {type.max}"


def finite(value: float | None) -> float | None:
    """The value of an option, if it is none of NaN and infinity."""
    if value is not None and not abs(value) < float("inf"):
        raise typer.BadParameter(f"must be a finite number, got {value}")
    return value
