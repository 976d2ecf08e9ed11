"""What is wrong with a study: a path to the field, and a sentence that says what would be right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from reprlib import Repr
from typing import Any

from stagetree.sequences import SequenceError


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at `field`, a path such as `space.lr[1].gamma`, in a sentence that says what would be right."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class SpecError(ValueError):
    """A study that cannot be, with all its problems; `source` is the file they are in."""

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        super().__init__("\n".join(f"{source}: {problem}" if source else str(problem) for problem in problems))
        self.problems, self.source = problems, source

    def __reduce__(self) -> tuple[type[SpecError], tuple[list[Problem], str]]:
        return type(self), (self.problems, self.source)


class FieldError(SequenceError):
    """A field outside the space, named in full."""


def shown(value: Any) -> str:
    """A value in an error message, cut to a length that can be read."""
    short = Repr()
    short.maxstring = short.maxother = 80
    return short.repr(value)


def joined(*parts: int | str) -> str:
    """The parts as one path: `space.lr[1].gamma`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part:
            path += part if not path or part.startswith(("[", ".")) else f".{part}"
    return path


_LISTED = re.compile(
    r"must be (?:a finite number|a whole number of steps|a number, a string|one of ).*, got [\[(](.+)[\])]$"
)


def with_choice(path: str, problem: str) -> Problem:
    """A problem at a path; in a space, where a list stands for one value, with how a choice is written."""
    listed = _LISTED.search(problem) if path.startswith("space") else None
    if listed is None or "[" in listed[1]:
        return Problem(path, problem)
    return Problem(path, f"{problem}; inside a sequence a choice is written {{choice: [{listed[1]}]}}")


def no_trainer(given: Any) -> str:
    """What to do instead with a function, or a class, in the place of a trainer's name; empty for anything else."""
    if isinstance(given, type):
        return f"must be the name of a trainer, got the class {given.__name__}: `stagetree.local()` takes classes"
    if hasattr(given, "train") and hasattr(given, "state_dict"):
        kind = type(given).__name__
        return f"must be the name of a trainer, got an object of the class {kind}: `stagetree.local()` takes the class"
    if not callable(given):
        return ""
    name = getattr(given, "__name__", "objective")
    how = "stagetree.function_trainer(name, build, step, measure) makes a trainer of three functions"
    return f"must be the name of a trainer, got the function {name}: {how}"
