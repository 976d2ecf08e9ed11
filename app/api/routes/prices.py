"""Prices of trials, in steps, before they are requested."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.bodies import SuggestionsBody, SuggestionsWanted, TrialBody, parse, parse_trial
from app.api.errors import refusals
from app.api.services import ServicesDep, StudyRowDep
from app.api.strict import StrictRoute
from app.domain import commands as c
from app.domain.terms import StudyId
from app.service import study_changes, suggestion_prices
from stagetree.models.trials import Branch

router = APIRouter(prefix="/studies/{study}", tags=["trials"], route_class=StrictRoute)

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
    return suggestion_prices.price(use, row, parse(SuggestionsWanted, body).suggestions)
