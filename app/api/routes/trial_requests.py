"""Trials that users request: their prices, branches, averages, and suggestions for the tuner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response

from app.api.access import Who
from app.api.bodies import (
    AverageBody,
    AverageWanted,
    BranchBody,
    BranchWanted,
    SuggestionsBody,
    SuggestionsWanted,
    TrialBody,
    parse,
    parse_trial,
)
from app.api.errors import UNCHANGED, refusals
from app.api.routes.plans import cached_response
from app.api.services import ServicesDep, StudyRowDep
from app.api.strict import At, WriterDep, api_router
from app.domain import commands as c
from app.domain.terms import StudyId
from app.service import queries, study_changes, suggestions
from stagetree.models.trials import Branch, SamplerState, Suggestions

router = api_router("/studies/{study}", tag="trials")

PRICE: dict[str, Any] = {
    "response_model": Branch,
    "response_model_exclude_unset": True,
    "response_description": "The price alone.",
    "responses": refusals(400, 404, 409, 413, 415),
}


@router.post("/trials:price", summary="What a trial of your own would cost; runs nothing", **PRICE)
def price_trial(row: StudyRowDep, body: TrialBody, use: ServicesDep) -> Branch:
    """The body is that of a new trial, with the same refusals."""
    start = parse_trial(body)
    command = c.AddTrial(study=StudyId(row.id), hp=start.hp, steps=start.steps)
    return Branch(**study_changes.price_of_trial(use, row, command))


@router.post("/suggestions:price", summary="What suggestions would cost at most; runs nothing", **PRICE)
def price_suggestions(row: StudyRowDep, body: SuggestionsBody, use: ServicesDep) -> Branch:
    """Each trained to the end of the study; the tuner may end it earlier. The body is that of suggestions."""
    return suggestions.price(use, row, parse(SuggestionsWanted, body).suggestions)


def parse_branch(body: Any, study: StudyId, at: float) -> c.BranchTrial:
    """The branch of a trial that a body asks for. Raises `SpecError`."""
    return c.BranchTrial(study=study, time=at, **dict(parse(BranchWanted, body)))


def parse_average(body: Any, study: StudyId, at: float) -> c.AverageTrials:
    """The average of trials that a body asks for. Raises `SpecError`."""
    average = parse(AverageWanted, body)
    trials, weights = tuple(average.trials), tuple(average.weights)
    return c.AverageTrials(study=study, time=at, **{**dict(average), "trials": trials, "weights": weights})


@dataclass
class Addition:
    """A request for a trial that is made of others."""

    response: Response
    row: StudyRowDep
    use: ServicesDep
    write: WriterDep
    preview: Annotated[bool, Query(description="say the price, and run nothing")] = False

    def answer(
        self, parse_command: Callable[[Any, StudyId, float], c.BranchTrial | c.AverageTrials], body: Any
    ) -> Branch:
        """Add the trial that the body asks for, unless only its price is wanted. Raises `SpecError`."""
        command = parse_command(body, StudyId(self.row.id), self.use.clock())
        price = study_changes.price_of_trial(self.use, self.row, command)
        if self.preview:
            self.response.status_code = 200
            return Branch(**price)
        number = study_changes.add_composed_trial(self.use, self.row, self.write, command)
        return Branch(**price, trial=queries.trial(self.use, self.row, number, None))


AdditionDep = Annotated[Addition, Depends()]
ADDITION: dict[str, Any] = {
    "status_code": 201,
    "response_model": Branch,
    "response_model_exclude_unset": True,
    "response_description": "Its price, and the trial.",
    "responses": {
        200: {"model": Branch, "description": "With `preview`: the price alone."},
        **refusals(400, 404, 409, 413, 415),
    },
}


@router.post("/trials:branch", summary="Branch a trial off another one", **ADDITION)
def branch_trial(addition: AdditionDep, body: BranchBody) -> Branch:
    """The new trial shares all steps up to `at` with the other one. A study that is over is reopened for it."""
    return addition.answer(parse_branch, body)


@router.post("/trials:average", summary="Average trials", **ADDITION)
def average_trials(addition: AdditionDep, body: AverageBody) -> Branch:
    """The new trial begins with the mean of the others' weights. It is evaluated, and trained further on request.

    A study that is over is reopened for it.
    """
    return addition.answer(parse_average, body)


@router.post(
    "/suggestions",
    status_code=201,
    summary="Suggest configurations",
    response_model=Suggestions,
    response_description="The suggestions, with their numbers.",
    responses=refusals(400, 404, 409, 413, 415),
)
def suggest(row: StudyRowDep, body: SuggestionsBody, use: ServicesDep, write: WriterDep, who: Who) -> Suggestions:
    """Enqueue configurations as the tuner's next trials, in their order: all or nothing.

    Each gives the values of some or all hyper-parameters; the sampler chooses the others when its trial begins. A value
    within the space is named by its path, such as `lr.init`. They count as trials of the study.
    """
    return suggestions.suggest(use, row, write, parse(SuggestionsWanted, body).suggestions, who)


@router.get(
    "/suggestions",
    summary="List suggestions",
    response_model=Suggestions,
    responses=refusals(404),
)
def list_suggestions(row: StudyRowDep, use: ServicesDep, at: At = None) -> Suggestions:
    """In their order, each with its trial."""
    return suggestions.suggestions(use, row, at)


@router.get(
    "/sampler",
    summary="What the sampler knows, and would propose next",
    response_model=SamplerState,
    responses={304: UNCHANGED, **refusals(404, 409)},
)
async def get_sampler(request: Request, row: StudyRowDep, use: ServicesDep, at: At = None) -> Response:
    """It follows from the log alone. In a running study, the next result may change it."""
    return await cached_response(request, use, row, ("sampler",), at, lambda: suggestions.sampler_state(use, row, at))


@router.delete(
    "/suggestions/{suggestion}",
    status_code=204,
    summary="Withdraw a suggestion",
    response_description="No trial will come of it.",
    responses=refusals(404, 409),
)
def withdraw(
    row: StudyRowDep,
    suggestion: Annotated[int, Path(ge=0, description="its number in the study")],
    use: ServicesDep,
    write: WriterDep,
    who: Who,
) -> None:
    """Refused once its trial has begun: cancel the trial instead."""
    suggestions.withdraw(use, row, write, suggestion, who)
