"""Replay of a study's decisions, and the log that it replays."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, StreamingResponse

from app.api.bodies import ChangesBody, changes_of
from app.api.errors import refusals
from app.api.services import StudyRowDep, Use
from app.api.sharing import heavy
from app.api.strict import StrictRoute
from app.service import exporting
from stagetree.models.pages import Imagined
from stagetree.models.service import Replay

Json = dict[str, Any]
router = APIRouter(prefix="/studies/{study}", tags=["replay"], route_class=StrictRoute)

At = Annotated[int | None, Query(ge=1, description="replay only as far as the event at this position")]
LINE = (
    '{"position": 7, "version": 7, "at": 1789000000.0, "type": "StudyPaused", "schema": 1,'
    ' "data": {"study": "digits-asha-3f9c1a"}}'
)


@router.post(
    ":replay",
    summary="Derive every decision again",
    response_model=Replay,
    response_model_exclude_unset=True,
    responses=refusals(404),
)
@heavy
def replay_study(row: StudyRowDep, use: Use, at: At = None) -> Replay:
    """Fold the log, ask the tuner again at every decision, and compare: `identical` is false if one differs."""
    return exporting.replay(use, row, at)


@router.post(
    ":what-if",
    summary="What another tuner would have decided",
    response_model=Imagined,
    responses=refusals(400, 404, 413, 415),
)
@heavy
def imagine_study(row: StudyRowDep, given: ChangesBody, use: Use, at: At = None) -> Imagined:
    """Over the results that exist: nothing is trained, and nothing is changed."""
    return exporting.imagined(use, row, changes_of(given), at)


@router.get(
    "/report",
    summary="The study as one file to look at",
    response_class=HTMLResponse,
    responses={200: {"content": {"text/html": {"example": "<!doctype html>"}}}, **refusals(404)},
)
@heavy
def get_report(row: StudyRowDep, use: Use) -> HTMLResponse:
    """The page with all that it shows of the study now: it works without a server, and without a network."""
    name = f'attachment; filename="{row.id}.html"'
    return HTMLResponse(exporting.report(use, row), headers={"Content-Disposition": name})


@router.get(
    "/log",
    summary="The whole log of the study's plan",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"example": LINE}}}, **refusals(404)},
)
def get_log(row: StudyRowDep, use: Use) -> StreamingResponse:
    """One event a line, those of other studies on the plan included: `stagetree replay --log` takes it as a file."""
    return StreamingResponse(exporting.log(use, row), media_type="text/plain")
