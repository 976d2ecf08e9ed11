"""The check of a new study: its fields and its space, with bounded effort, and the first decision of its tuner."""

from __future__ import annotations

from typing import Any

from app.search.samplers import unavailable
from app.search.tuners import TunerDriver, TunerFailed
from stagetree.limits import Limits
from stagetree.sequences import SequenceError
from stagetree.space.effort import TooMuchEffort, bounded_effort
from stagetree.spec import Problem, SpecError, StudySpec

MOST_VALUES = 100_000
"""The values that are tried to check a study: some two seconds of work."""


def checked_study(body: Any, limits: Limits) -> StudySpec:
    """The study in a body. Raises `SpecError`, also for one that takes too much effort to check."""
    try:
        with bounded_effort(MOST_VALUES):
            spec = StudySpec.from_dict(body, limits)
            if (problem := unavailable(spec)) is not None:
                raise SpecError([Problem("tuner.sampler", problem)])
            check_tuner(spec)
    except TooMuchEffort as problem:
        raise SpecError([Problem("space", str(problem))]) from None
    return spec


MOST_LISTED = 10_000
"""The scheduler alone makes a tuner that lists trials with more values than that, since it takes a while."""


def check_tuner(spec: StudySpec) -> None:
    """Make the tuner of a new study and its first request. Raises `SpecError` if that fails."""
    try:
        if not spec.tuner.trains_to_the_end or _lists_few(spec):
            TunerDriver(spec.to_json()).suggest(room=1)
    except SequenceError as error:
        raise SpecError([Problem(f"space.{error.field}".rstrip("."), error.problem)]) from None
    except TunerFailed as failed:
        raise SpecError([Problem("tuner", f"must be able to make its first decision: {failed}")]) from None


def _lists_few(spec: StudySpec) -> bool:
    """Whether all trials of the study have few values together. Raises `SequenceError` if one of the first is wrong."""
    values = 0
    for configuration in spec.tuner.configurations(spec):
        values += len(configuration)
        if values > MOST_LISTED:
            return False
    return True
