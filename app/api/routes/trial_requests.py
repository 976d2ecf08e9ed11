"""What users ask of a study beside its tuner, and of its tuner: branches and averages of trials, and suggestions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from app.api.access import Who
from app.api.bodies import (
    AverageBody,
    BranchBody,
    SuggestionsBody,
    SuggestionsWanted,
    parse,
    parse_average,
    parse_branch,
)
from app.api.errors import refusals
from app.api.services import ApiServices, ServicesDep, StudyRowDep, heavy
from app.api.strict import At, StrictRoute, Write, WriterDep
from app.domain import commands as c
from app.domain.terms import StudyId
from app.service import queries, study_changes, suggestions
from stagetree.models.trials import Branch, SamplerState, Suggestions

router = APIRouter(prefix="/studies/{study}", tags=["trials"], route_class=StrictRoute)

PRICED: dict[int | str, dict[str, Any]] = {200: {"model": Branch, "description": "With `preview`: the price alone."}}
OnlyPrice = Annotated[bool, Query(description="say the price, and run nothing")]


@router.post(
    "/trials:branch",
    status_code=201,
    summary="Branch a trial off another one",
    response_model=Branch,
    response_model_exclude_unset=True,
    response_description="Its price, and the trial.",
    responses={**PRICED, **refusals(400, 404, 409, 413, 415)},
)
def branch_trial(
    response: Response,
    row: StudyRowDep,
    body: BranchBody,
    use: ServicesDep,
    write: WriterDep,
    preview: OnlyPrice = False,
) -> Branch:
    """Up to a step it is that trial, so that these steps are shared. A study that is over goes on for it."""
    return _add_or_price(response, row, parse_branch(body, StudyId(row.id), use.clock()), use, write, preview)


@router.post(
    "/trials:average",
    status_code=201,
    summary="Average trials",
    response_model=Branch,
    response_model_exclude_unset=True,
    response_description="Its price, and the trial.",
    responses={**PRICED, **refusals(400, 404, 409, 413, 415)},
)
def average_trials(
    response: Response,
    row: StudyRowDep,
    body: AverageBody,
    use: ServicesDep,
    write: WriterDep,
    preview: OnlyPrice = False,
) -> Branch:
    """Its weights are the mean of those with which the others were measured; it is evaluated, and trained on if that is
    asked for. A study that is over goes on for it.
    """
    return _add_or_price(response, row, parse_average(body, StudyId(row.id), use.clock()), use, write, preview)


def _add_or_price(
    response: Response,
    row: StudyRowDep,
    command: c.BranchTrial | c.AverageTrials,
    use: ApiServices,
    write: Write,
    preview: bool,
) -> Branch:
    price = study_changes.price_of_trial(use, row, command)
    if preview:
        response.status_code = 200
        return Branch(**price)
    return Branch(**price, trial=queries.trial(use, row, study_changes.add_made_of(use, row, write, command), None))


@router.post(
    "/suggestions",
    status_code=201,
    summary="Suggest configurations",
    response_model=Suggestions,
    response_description="The suggestions, with their numbers.",
    responses=refusals(400, 404, 409, 413, 415),
)
def suggest(row: StudyRowDep, body: SuggestionsBody, use: ServicesDep, write: WriterDep, who: Who) -> Suggestions:
    """They take the next places of the study's tuner, in their order, before anything is drawn. All or nothing.

    Each says the value of some hyper-parameters, or of all; the rest is chosen when its place comes. A value
    of the space is also named by its place, such as `lr.init`. They count as trials of the study.
    """
    return suggestions.suggest(use, row, write, parse(SuggestionsWanted, body).suggestions, who)


@router.get(
    "/suggestions",
    summary="List suggestions",
    response_model=Suggestions,
    responses=refusals(404),
)
def list_suggestions(row: StudyRowDep, use: ServicesDep, at: At = None) -> Suggestions:
    """In the order in which their places come, each with the trial that came of it."""
    return suggestions.suggestions(use, row, at)


@router.get(
    "/sampler",
    summary="What the sampler knows, and would propose next",
    response_model=SamplerState,
    responses=refusals(404, 409),
)
@heavy
def get_sampler(row: StudyRowDep, use: ServicesDep, at: At = None) -> SamplerState:
    """It follows from the log alone. Where the study goes on, another result may come first."""
    return suggestions.sampler_state(use, row, at)


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
    """Its place is free for another one. Once its trial has begun it is refused: cancel the trial instead."""
    suggestions.withdraw(use, row, write, suggestion, who)
