"""Whether a study gives its trainer the arguments that it takes."""

from __future__ import annotations

from collections.abc import Iterator

from app.registry import TrainerSource
from stagetree.sequences import did_you_mean
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.errors import first_problems


def check_arguments(spec: StudySpec, source: TrainerSource) -> None:
    """Raises `SpecError` for unknown arguments that a study gives its trainer, and for missing ones."""
    if problems := first_problems(_wrong_arguments(spec, source)):
        raise SpecError(problems)


def _wrong_arguments(spec: StudySpec, source: TrainerSource) -> Iterator[Problem]:
    """Unknown and missing arguments of the constructor, and weights that the trainer cannot begin from."""
    takes = source.takes
    for where, supplied in (("trainer_args", spec.trainer_args), ("runtime_args", spec.runtime_args)):
        for name in supplied:
            if not (takes.is_open or name in takes.names):
                expected = f"there are {', '.join(takes.names)}" if takes.names else "it takes none"
                problem = f"is no argument of trainer {spec.trainer!r}: {expected}{did_you_mean(name, takes.names)}"
                yield Problem(f"{where}.{name}", problem)
    if spec.begin_from is not None and not spec.begin_from.state and "begin" in source.lacks:
        yield Problem("begin_from", f"needs a method `begin(self, weights)`, and trainer {spec.trainer!r} has none")
    if source.single_rank and spec.ranks != 1:
        yield Problem("ranks", f"must be 1: trainer {spec.trainer!r} {source.single_rank}")
    for name in takes.required:
        if name not in spec.trainer_args and name not in spec.runtime_args:
            yield Problem(f"trainer_args.{name}", f"is missing: trainer {spec.trainer!r} has no default for it")
