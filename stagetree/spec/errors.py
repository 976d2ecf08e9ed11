"""Problems of a study: the path of the field, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from reprlib import Repr
from typing import Any

from stagetree.sequences import SequenceError, did_you_mean


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence about the field at a path such as `space.lr[1].gamma`."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


MOST_PROBLEMS = 100
"""A study with more problems is not what its user means; describing each takes a while."""


def first_problems(problems: Iterable[Problem]) -> list[Problem]:
    """The first problems, of which more are not described."""
    return list(islice(problems, MOST_PROBLEMS))


class SpecError(ValueError):
    """An invalid study, with all its problems. `source` is the name of its file."""

    def __init__(self, problems: list[Problem], source: str = "") -> None:
        super().__init__("\n".join(f"{source}: {problem}" if source else str(problem) for problem in problems))
        self.problems, self.source = problems, source

    def __reduce__(self) -> tuple[type[SpecError], tuple[list[Problem], str]]:
        return type(self), (self.problems, self.source)


class FieldError(SequenceError):
    """A problem outside the space; `field` is the full path."""


def shorten(value: Any) -> str:
    """The value for an error message, cut to a readable length."""
    short = Repr()
    short.maxstring = short.maxother = 80
    return short.repr(value)


def join_path(*parts: int | str) -> str:
    """Join the parts of a path: `space.lr[1].gamma`."""
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


_MOST_HINTED = 1_000
"""The characters of a problem in which a list is looked for: the time grows with their square."""


def add_choice_hint(path: str, problem: str) -> Problem:
    """The problem; if a list was given inside a sequence of the space, with a hint how to write a choice."""
    may_be_list = path.startswith("space") and len(problem) < _MOST_HINTED
    listed = _LISTED.search(problem) if may_be_list else None
    if listed is None or "[" in listed[1]:
        return Problem(path, problem)
    return Problem(path, f"{problem}; inside a sequence a choice is written {{choice: [{listed[1]}]}}")


def trainer_name_hint(given: Any) -> str:
    """What to do if a function or class was given instead of a trainer's name; empty for anything else."""
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


_OTHER_TOOLS = {
    "space": ("parameters", "search_space", "param_space", "params", "hyperparameters", "hyper_parameters"),
    "tuner": ("method", "scheduler", "search_alg", "algorithm", "strategy", "pruner", "early_terminate"),
    "trainer": ("program", "command", "script", "trainable"),
    "metric": ("objective", "monitor"),
    "max_steps": ("epochs", "max_epochs", "num_epochs", "n_epochs", "iterations", "max_iter"),
    "min_steps": ("grace", "min_iter"),
    "num_trials": ("run_cap", "max_trials", "max_evals"),
}
"""Names in other tools for fields whose value is written differently there."""

_MAX_NAMED = 20
"""With more fields than this, only the closest match is named."""


def unknown_field_message(name: str, fields: Sequence[str]) -> str:
    """A message for an unknown field, with a suggestion."""
    if meant := next((field for field, names in _OTHER_TOOLS.items() if name in names), ""):
        if meant in fields:
            return f"is not a field here: its name is {meant}"
        if "tuner" in fields:
            return f"is not a field here: {meant} of the tuner is meant for that"
    hint = did_you_mean(name, fields)
    if hint and not 1 < len(fields) <= _MAX_NAMED:
        return f"is not a field here{hint}"
    return f"is not a field here{f'{hint} There' if hint else ': there'} are {', '.join(fields)}"
