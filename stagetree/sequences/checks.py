"""What is looked at when a sequence is made: each raises `SequenceError` with the field and what would be right."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

from stagetree.sequences.base import SequenceError


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise SequenceError(name, f"must be a finite number, got {value!r}")


MOST_STEPS = 2**52
"""Up to here a float is exact to half a step."""


def check_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SequenceError(name, f"must be a whole number of steps, at least {least}, got {value!r}")
    if value > MOST_STEPS:
        raise SequenceError(name, f"must be a whole number of steps, at most {MOST_STEPS}")


def check_scalar(name: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str | None):
        raise SequenceError(name, f"must be a number, a string, true, false or null, got {value!r}")
    if isinstance(value, float):
        check_number(name, value)


def check_list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise SequenceError(name, f"must be a list, got {value!r}")
    return tuple(value)


def check_milestones(value: Any) -> tuple[int, ...]:
    milestones = check_list("milestones", value)
    for number, milestone in enumerate(milestones):
        check_count(f"milestones[{number}]", milestone, least=0)
    for before, after in pairwise(milestones):
        if after <= before:
            raise SequenceError("milestones", f"must rise from one to the next, but {after} comes after {before}")
    return milestones


def set_field(frozen: Any, name: str, value: Any) -> None:
    object.__setattr__(frozen, name, value)
