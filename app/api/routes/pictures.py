"""What pictures of a study are drawn from: made from the folded plan, and kept as long as nothing happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from app.api.openapi import UNCHANGED, refusals
from app.api.requests.strict import At, StrictRoute
from app.api.services import ApiServices, StudyRowDep, TrialPath, Use
from app.api.sharing import Key
from app.events.rows import StudyRecord
from app.service import drawing
from stagetree.models.pages import History, Importance, Rungs, Schedules, Timeline, Tree


async def kept(
    request: Request, use: ApiServices, row: StudyRecord, key: Key, at: int | None, make: Callable[[], BaseModel]
) -> Response:
    """The answer that `make` gives at the event `at`, or now, made once for each moment."""
    moment = f"at{at}" if at is not None else await use.together.do(("version", row.stream), lambda: use.version(row))
    key = (*key, row.id, at)
    answer = use.answers.find(key, moment)
    if answer is None:
        async with use.turns.turn(row.id):
            answer = await run_in_threadpool(use.answers.get, key, moment, make)
    return await run_in_threadpool(answer.to, request) if answer.is_to_be_unpacked(request) else answer.to(request)


router = APIRouter(prefix="/studies/{study}", tags=["pictures"], route_class=StrictRoute)

Json = dict[str, Any]
Points = Annotated[int, Query(ge=4, le=1000, description="the most points of a curve")]
Rung = Annotated[int | None, Query(ge=0, description="by the results at this rung, instead of the trials' values")]


def _picture(path: str, summary: str, model: Any) -> Json:
    return {
        "path": path,
        "summary": summary,
        "response_model": model,
        "response_description": "The columns; `ETag` says at which event.",
        "responses": {304: UNCHANGED, **refusals(404)},
    }


@router.get(**_picture("/tree", "What its trials share", Tree))
async def get_tree(request: Request, row: StudyRowDep, use: Use, points: Points = 60, at: At = None) -> Response:
    """The study's part of the search plan, with the curve of the metric in each node."""
    return await kept(request, use, row, ("tree", points), at, lambda: drawing.tree(use, row, points, at))


@router.get(**_picture("/rungs", "Who came how far", Rungs))
async def get_rungs(request: Request, row: StudyRowDep, use: Use, at: At = None) -> Response:
    """Each rung with its trials by rank, and which of them went on. Empty for a tuner without rungs."""
    return await kept(request, use, row, ("rungs",), at, lambda: drawing.rungs(use, row, at))


@router.get(**_picture("/timeline", "What each slot did", Timeline))
async def get_timeline(request: Request, row: StudyRowDep, use: Use, at: At = None) -> Response:
    """Stages over time, those of other studies on the plan included, with evaluations and checkpoints."""
    return await kept(request, use, row, ("timeline",), at, lambda: drawing.timeline(use, row, at))


@router.get(**_picture("/history", "What was decided, and when", History))
async def get_history(request: Request, row: StudyRowDep, use: Use, at: At = None) -> Response:
    """Every decision about a trial or the study, each result that was the best so far, and the times of events."""
    return await kept(request, use, row, ("history",), at, lambda: drawing.history(use, row, at))


@router.get(**_picture("/importance", "What the result depends on", Importance))
async def get_importance(request: Request, row: StudyRowDep, use: Use, rung: Rung = None, at: At = None) -> Response:
    """The share of each hyper-parameter that varies, by Optuna's PED-ANOVA."""
    key = ("importance", rung)
    return await kept(request, use, row, key, at, lambda: drawing.importance(use, row, rung, at))


@router.get(
    "/trials/{number}/schedules",
    summary="What a trial's hyper-parameters do",
    response_model=Schedules,
    responses=refusals(404),
)
def get_schedules(row: StudyRowDep, number: TrialPath, use: Use, points: Points = 60) -> Schedules:
    """Their values over its steps, to draw them."""
    return drawing.schedules(use, row, number, points)
