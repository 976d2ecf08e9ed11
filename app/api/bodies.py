"""What bodies write, parsed in our own words: refusals name each field. FastAPI knows their types, for the document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from app.api import examples
from app.domain import commands as c
from app.domain.terms import Scope, StudyId
from app.registry import Catalogue, TrainerFileError, TrainerSource, check_arguments
from app.search.samplers import unavailable
from app.service.access import NAME
from app.service.suggestions import check_tuner
from stagetree.limits import Limits
from stagetree.models.service import ScopeWord
from stagetree.sequences import did_you_mean
from stagetree.spec import Problem as SpecProblem
from stagetree.spec import SpecError, StudySpec, TrialSpec, shorten
from stagetree.spec.suggestions import MOST_SUGGESTIONS

Json = dict[str, Any]
Valid = TypeVar("Valid", bound=BaseModel)


def study_of(body: Any, trainers: Catalogue, limits: Limits) -> tuple[StudySpec, TrainerSource]:
    """A body's study, and its trainer. Raises `SpecError`; also where this server has not what it needs."""
    spec = StudySpec.from_dict(body, limits)
    trainer = _trainer_of(spec, trainers)
    if (problem := unavailable(spec)) is not None:
        raise SpecError([SpecProblem("tuner.sampler", problem)])
    check_tuner(spec)
    return spec, trainer


def _trainer_of(spec: StudySpec, trainers: Catalogue) -> TrainerSource:
    """The trainer of a study, as its file is now. Raises `SpecError`."""
    try:
        source = trainers.find(spec.trainer)
    except TrainerFileError as error:
        raise SpecError([SpecProblem("trainer", f"cannot be used as its file is now: {error}")]) from None
    if source is None:
        raise SpecError([SpecProblem("trainer", _unknown_trainer(spec.trainer, sorted(trainers.describe())))])
    check_arguments(spec, source)
    return source


def _unknown_trainer(name: str, names: list[str]) -> str:
    if not names:
        return f"must be registered on this server, which has no trainers, got {name!r}"
    return f"must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}"


def start_of(body: Any) -> c.Start:
    """The new trial that a body asks for. Raises `SpecError`."""
    trial = _trial_of(body)
    return c.Start(hp={name: sequence.to_json() for name, sequence in trial.configuration().items()}, steps=trial.steps)


def _trial_of(body: Any) -> TrialSpec:
    inside = "tuner.trials[0]"
    study = {"name": "x", "trainer": "x", "metric": "x", "mode": "max", "tuner": {"kind": "trials", "trials": [body]}}
    try:
        return StudySpec.from_dict(study, limits=None).tuner.trials[0]  # type: ignore[union-attr]
    except SpecError as error:
        problems = [SpecProblem(each.field.removeprefix(inside).lstrip("."), each.problem) for each in error.problems]
        raise SpecError(problems) from None


def asks_of(body: Any) -> list[c.Start | c.Extend]:
    """The trials that a body asks for, new ones and longer ones. Raises `SpecError`."""
    if not isinstance(body, dict) or body.keys() != {"trials"} or not isinstance(body["trials"], list):
        raise SpecError([SpecProblem("trials", "must be the one field: a list of {hp, steps} and {trial, steps}")])
    asks, problems = list[c.Start | c.Extend](), list[SpecProblem]()
    for number, item in enumerate(body["trials"]):
        try:
            asks.append(_ask_of(item))
        except SpecError as error:
            problems += [SpecProblem(f"trials[{number}].{p.field}".rstrip("."), p.problem) for p in error.problems]
    if problems:
        raise SpecError(problems)
    return asks


def _ask_of(item: Any) -> c.Start | c.Extend:
    if isinstance(item, dict) and "trial" in item:
        return extension_of({name: value for name, value in item.items() if name != "trial"}, item["trial"])
    return start_of(item)


def extension_of(body: Any, trial: Any) -> c.Extend:
    """More steps for a trial, as a body asks for them. Raises `SpecError`."""
    fields = body if isinstance(body, dict) else {}
    problems = []
    if not is_count(trial, 0):
        problems.append(SpecProblem("trial", f"must be the number of a trial, from 0 on, got {shorten(trial)}"))
    if not is_count(fields.get("steps"), 1) or len(fields) != 1:
        problems.append(SpecProblem("steps", "must be the one field: the number of steps in all, at least 1"))
    if problems:
        raise SpecError(problems)
    return c.Extend(trial=trial, steps=fields["steps"])


def branch_of(body: Any, study: StudyId, at: float) -> c.BranchTrial:
    """The branch of a trial that a body asks for. Raises `SpecError`."""
    fields = body if isinstance(body, dict) else {}
    names = ", ".join(BRANCH)
    problems = [SpecProblem(name, f"is no field of a branch: there are {names}") for name in fields.keys() - BRANCH]
    for name, expected, least in _COUNTS_OF_A_BRANCH:
        if not is_count(fields.get(name), least):
            problems.append(SpecProblem(name, f"must be {expected}, got {shorten(fields.get(name))}"))
    if not isinstance(fields.get("hp"), dict):
        expected = "an object from hyper-parameters to their values from there on"
        problems.append(SpecProblem("hp", f"must be {expected}, got {shorten(fields.get('hp'))}"))
    if problems:
        raise SpecError(problems)
    return c.BranchTrial(study=study, time=at, **fields)


def suggestions_of(body: Any) -> list[Json]:
    """The configurations that a body suggests. Raises `SpecError`."""
    fields = body if isinstance(body, dict) else {}
    listed = fields.get("suggestions")
    if fields.keys() != {"suggestions"} or not isinstance(listed, list) or not 1 <= len(listed) <= MOST_SUGGESTIONS:
        expected = f"a list of 1 to {MOST_SUGGESTIONS} objects from hyper-parameter to value"
        raise SpecError([SpecProblem("suggestions", f"must be the one field: {expected}")])
    for number, each in enumerate(listed):
        if not isinstance(each, dict) or not each:
            expected = "an object from hyper-parameter to value, with one at least"
            raise SpecError([SpecProblem(f"suggestions[{number}]", f"must be {expected}, got {shorten(each)}")])
    return listed


def average_of(body: Any, study: StudyId, at: float) -> c.AverageTrials:
    """The average of trials that a body asks for. Raises `SpecError`."""
    average = valid(AverageWanted, body)
    trials, weights = tuple(average.trials), tuple(average.weights)
    return c.AverageTrials(study=study, time=at, **{**dict(average), "trials": trials, "weights": weights})


_COUNTS_OF_A_BRANCH = (
    ("trial", "the number of a trial, from 0 on", 0),
    ("at", "the step after which it parts, at least 1", 1),
    ("steps", "the number of steps in all, at least 1", 1),
)


@dataclass(frozen=True, slots=True)
class TokenAsked:
    """A token to make, as of `app.service.access.create`."""

    name: str
    scope: Scope
    project: str | None
    days: float | None


def token_of(body: Any) -> TokenAsked:
    """The token that a body asks for. Raises `SpecError`."""
    token = valid(TokenWanted, body)
    return TokenAsked(token.name, Scope.parse(token.scope), token.project, token.days)


def valid(kind: type[Valid], body: Any) -> Valid:
    """The body as `kind`. Raises `SpecError`."""
    try:
        return kind.model_validate(body)
    except ValidationError as wrong:
        fields = [(".".join(map(str, each["loc"])), each["msg"]) for each in wrong.errors()]
        raise SpecError([SpecProblem(field, f"is wrong: {problem}") for field, problem in fields]) from None


def changes_of(body: Any) -> Json:
    """What another study file would say, by dotted path. Raises `SpecError`."""
    changes = body.get("changes") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(changes, dict) or not changes:
        raise SpecError([SpecProblem("changes", "must be the one field: an object such as {tuner.max_steps: 20}")])
    return changes


def is_count(value: Any, least: int) -> bool:
    """Whether it is a whole number, at least so large."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _as_it_is(value: Any) -> Any:
    """The route parses it, by the limits of its server."""
    return value


def typed(kind: Any, example: Any) -> Any:
    """A body that the document describes as `kind`."""
    validator = PlainValidator(_as_it_is, json_schema_input_type=kind)
    return Annotated[Any, validator, Body(openapi_examples={"example": {"value": example}})]


class Longer(BaseModel):
    """More steps of a trial there is."""

    model_config = ConfigDict(extra="forbid")
    trial: int = Field(ge=0, description="its number")
    steps: int = Field(ge=1, description="how many in all")


class Branching(BaseModel):
    """A trial that begins as another one did."""

    model_config = ConfigDict(extra="forbid")
    trial: int = Field(ge=0, description="the number of the trial that it parts from")
    at: int = Field(ge=1, description="the step after which it does")
    hp: Json = Field(description="what changes: sequences whose own t is 0 there")
    steps: int = Field(ge=1, description="how many in all")


class AverageWanted(BaseModel):
    """A trial that begins with the mean of other trials' states."""

    model_config = ConfigDict(extra="forbid", strict=True)
    trials: list[Annotated[int, Field(ge=0)]] = Field(default=[], description="their numbers")
    best: int | None = Field(default=None, ge=1, description="instead of them, so many of the best")
    last: int | None = Field(default=None, ge=2, description="of one trial, so many of the last states that are kept")
    weights: list[float] = Field(default=[], description="one for each state; none for equal ones")
    steps: int | None = Field(default=None, ge=1, description="how many in all, where it is trained on")
    hp: Json = Field(default={}, description="what changes then: sequences whose own t is 0 there")


class SuggestionsWanted(BaseModel):
    """Configurations that a study's tuner is to try next."""

    model_config = ConfigDict(extra="forbid")
    suggestions: list[Json] = Field(
        min_length=1, max_length=MOST_SUGGESTIONS, description="each by hyper-parameter, or by the place of a value"
    )


class Extension(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = Field(ge=1, description="how many in all")


class TrialsAsked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    trials: list[TrialSpec | Longer]


class Changes(BaseModel):
    """Another study file, as what is different in it."""

    model_config = ConfigDict(extra="forbid")
    changes: Json = Field(description="new values by dotted path: tuner.reduction_factor")


class TokenWanted(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(description="by which its holder is in the log", pattern=f"^{NAME.pattern}$")
    scope: ScopeWord = "submit"
    project: str | None = Field(default="", max_length=64, description="the one that it is for; null for all")
    days: float | None = Field(default=90, gt=0, le=36_500, description="until it expires; null for never")


BRANCH: Json = {"trial": 3, "at": 20, "hp": {"lr": 0.01}, "steps": 30}
TRIAL = {"hp": examples.HP, "steps": 40}
StudyBody = typed(StudySpec, examples.STUDY_FILE)
TrialBody = typed(TrialSpec, TRIAL)
AsksBody = typed(TrialsAsked, {"trials": [TRIAL, {"trial": 3, "steps": 80}]})
ChangesBody = typed(Changes, {"changes": {"tuner.reduction_factor": 2}})
BranchBody = typed(Branching, BRANCH)
AverageBody = typed(AverageWanted, {"best": 3})
SuggestionsBody = typed(SuggestionsWanted, {"suggestions": [{"lr": 0.1}]})
ExtensionBody = typed(Extension, {"steps": 80})
TokenBody = typed(TokenWanted, {"name": "ci", "scope": "submit", "project": "vision", "days": 90})
