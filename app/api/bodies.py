"""The bodies of requests: their types, and their parsing.

A type's descriptions complete the sentences "must be ..." and "is missing: ...", as those of study files do.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import call
from typing import Annotated, Any, TypeVar, get_args

from fastapi import Body
from pydantic import Field, PlainValidator

from app.api import examples
from app.domain import commands as c
from app.registry import Catalogue, TrainerFileError, TrainerSource
from app.service.access import NAME
from app.service.study_checks import checked_study
from app.trainer_arguments import check_arguments
from stagetree.limits import Limits
from stagetree.models.service import ScopeWord
from stagetree.sequences import did_you_mean
from stagetree.spec import Problem as SpecProblem
from stagetree.spec import SpecError, StudySpec, TrialSpec, shorten
from stagetree.spec.fields import SpecPart
from stagetree.spec.suggestions import MOST_SUGGESTIONS

Json = dict[str, Any]
Compute = Callable[..., Any]
"""Calls a function with arguments, here or in another process."""

Parsed = TypeVar("Parsed", bound=SpecPart)


def parse_study(
    body: Any, trainers: Catalogue, limits: Limits, compute: Compute = call
) -> tuple[StudySpec, TrainerSource]:
    """A body's study, and its trainer. Raises `SpecError`, also where this server lacks something the study needs.

    compute: does the work, which may be much for a large body.
    """
    spec: StudySpec = compute(checked_study, body, limits)
    try:
        source = trainers.find(spec.trainer)
    except TrainerFileError as error:
        raise SpecError([SpecProblem("trainer", f"cannot be used as its file is now: {error}")]) from None
    if source is None:
        raise SpecError([SpecProblem("trainer", _unknown_trainer(spec.trainer, sorted(trainers.describe())))])
    check_arguments(spec, source)
    return spec, source


def _unknown_trainer(name: str, names: list[str]) -> str:
    if not names:
        return f"must be registered on this server, which has no trainers, got {name!r}"
    return f"must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}"


def parse(kind: type[Parsed], body: Any) -> Parsed:
    """The body as an object of `kind`. Raises `SpecError` with every problem."""
    return kind(**(body if isinstance(body, dict) else {}))


def parse_trial(body: Any) -> c.Start:
    """The new trial that a body asks for. Raises `SpecError`."""
    if not isinstance(body, dict):
        raise SpecError([SpecProblem("", f"must be an object with hp and steps, got {shorten(body)}")])
    trial = TrialSpec(**body)
    return c.Start(hp={name: sequence.to_json() for name, sequence in trial.configuration().items()}, steps=trial.steps)


def parse_trials(body: Any) -> list[c.Start | c.Extend]:
    """The trials that a body asks for, new ones and longer ones. Raises `SpecError`."""
    requests, problems = list[c.Start | c.Extend](), list[SpecProblem]()
    for number, item in enumerate(parse(TrialsWanted, body).trials):
        try:
            is_longer = isinstance(item, dict) and "trial" in item
            requests.append(c.Extend(**dict(parse(LongerTrial, item))) if is_longer else parse_trial(item))
        except SpecError as error:
            problems += [
                SpecProblem(f"trials[{number}].{each.field}".rstrip("."), each.problem) for each in error.problems
            ]
    if problems:
        raise SpecError(problems)
    return requests


def parse_extension(body: Any, trial: int) -> c.Extend:
    """More steps for the trial in the path. Raises `SpecError`."""
    return c.Extend(**dict(parse(LongerTrial, {**dict(parse(Extension, body)), "trial": trial})))


def _unparsed(value: Any) -> Any:
    """FastAPI leaves the body to the route, which knows the limits of its server and our words for refusals."""
    return value


def typed(kind: Any, example: Any) -> Any:
    """A body that the document describes as `kind`."""
    validator = PlainValidator(_unparsed, json_schema_input_type=kind)
    return Annotated[Any, validator, Body(openapi_examples={"example": {"value": example}})]


TrialNumber = Annotated[int, Field(ge=0, description="the number of a trial, from 0 on")]
Steps = Annotated[int, Field(ge=1, description="the number of steps in all, at least 1")]


class LongerTrial(SpecPart):
    """More steps of a trial there is."""

    trial: TrialNumber
    steps: Steps


class Extension(SpecPart):
    steps: Steps


class TrialsWanted(SpecPart):
    trials: list[Annotated[Any, PlainValidator(_unparsed, json_schema_input_type=TrialSpec | LongerTrial)]] = Field(
        description="a list of {hp, steps} for new trials and {trial, steps} for longer ones"
    )


class BranchWanted(SpecPart):
    """A trial that begins as another one did."""

    trial: TrialNumber
    at: int = Field(ge=1, description="the last step that both trials share, at least 1")
    hp: Json = Field(
        description="an object from hyper-parameter to value from there on; a sequence has its step 0 there"
    )
    steps: Steps


class AverageWanted(SpecPart):
    """A trial that begins with the mean of other trials' states."""

    trials: list[Annotated[int, Field(ge=0)]] = Field(default=[], description="numbers of trials, in a list")
    best: int | None = Field(default=None, ge=1, description="how many of the best trials to take instead, at least 1")
    last: int | None = Field(
        default=None, ge=2, description="how many of one trial's last kept states to take, at least 2"
    )
    weights: list[float] = Field(default=[], description="one number for each state, in a list; none for equal weights")
    steps: int | None = Field(default=None, ge=1, description="the number of steps in all, to train the mean further")
    hp: Json = Field(default={}, description="an object from hyper-parameter to value from there on")


class SuggestionsWanted(SpecPart):
    """Configurations that a study's tuner is to try next."""

    suggestions: list[Annotated[Json, Field(min_length=1)]] = Field(
        min_length=1,
        max_length=MOST_SUGGESTIONS,
        description="an object from hyper-parameter, or place in the space, to value; "
        f"1 to {MOST_SUGGESTIONS} of them, in a list",
    )


class ChangesWanted(SpecPart):
    """Another study file, as its differences."""

    changes: Json = Field(
        min_length=1, description="an object from dotted path to value, such as {tuner.max_steps: 20}"
    )


class TokenWanted(SpecPart):
    """A token to make."""

    name: str = Field(
        pattern=f"^{NAME.pattern}$",
        description="the name of its holder in the log: at most 64 letters, digits and . _ @ -",
    )
    scope: ScopeWord = Field(default="submit", description=f"one of {', '.join(get_args(ScopeWord))}")
    project: str | None = Field(default="", max_length=64, description="the name of its project, or null for all")
    days: float | None = Field(
        default=90, gt=0, le=36_500, description="the number of days until it expires, or null for never"
    )
    max_slot_seconds: float | None = Field(
        default=None, gt=0, description="how many seconds of slots all its studies may take, or null for no limit"
    )


TRIAL = {"hp": examples.HP, "steps": 40}
StudyBody = typed(StudySpec, examples.STUDY_FILE)
TrialBody = typed(TrialSpec, TRIAL)
TrialsBody = typed(TrialsWanted, {"trials": [TRIAL, {"trial": 3, "steps": 80}]})
ChangesBody = typed(ChangesWanted, {"changes": {"tuner.reduction_factor": 2}})
BranchBody = typed(BranchWanted, {"trial": 3, "at": 20, "hp": {"lr": 0.01}, "steps": 30})
AverageBody = typed(AverageWanted, {"best": 3})
SuggestionsBody = typed(SuggestionsWanted, {"suggestions": [{"lr": 0.1}]})
ExtensionBody = typed(Extension, {"steps": 80})
TokenBody = typed(TokenWanted, {"name": "ci", "scope": "submit", "project": "vision", "days": 90})
