"""What lies behind a study: its search plan, its stage tree, its events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse

from app.api.openapi import refusals
from app.api.requests.strict import POSITION, At, Cursor, Limit, StrictRoute
from app.api.services import ApiServices, StudyRowDep, Use
from app.api.sharing import heavy
from app.events.rows import StudyRecord
from app.service import reading
from stagetree.models.pages import Environments, EventPage
from stagetree.models.trials import Plan, StageTree

router = APIRouter(prefix="/studies/{study}", tags=["plans"], route_class=StrictRoute)

Json = dict[str, Any]
After = Annotated[int, Query(ge=0, le=POSITION, description="leave out the events up to this position")]
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=POSITION, description="the same, for a stream that broke")
]
STREAM = {"description": "A page or, with `Accept: text/event-stream`, a stream.", "content": {"text/event-stream": {}}}


@router.get("/plan", summary="The search plan that a study is part of", response_model=Plan, responses=refusals(404))
@heavy
def get_plan(row: StudyRowDep, use: Use, at: At = None) -> Plan:
    """All its nodes, with those of the other studies on it."""
    return reading.plan(use, row, at)


@router.get("/stage-tree", summary="What is left to do", response_model=StageTree, responses=refusals(404))
@heavy
def get_stage_tree(row: StudyRowDep, use: Use, at: At = None) -> StageTree:
    """The stages that no slot is training yet. Empty for a study that is paused or over."""
    return reading.stage_tree(use, row, at)


@router.get(
    "/environment",
    summary="What a study is trained with",
    response_model=Environments,
    responses=refusals(404),
)
def get_environment(row: StudyRowDep, use: Use) -> Environments:
    """By kind of device, as the first slot of the plan saw it there: packages, driver, and the trainer's repository."""
    return reading.environment(use, row)


@router.get(
    "/events",
    summary="What has happened, or what happens",
    response_model=EventPage,
    responses={200: STREAM, 204: {"description": "The study is over, and the stream holds no more."}, **refusals(404)},
)
def list_events(
    request: Request,
    row: StudyRowDep,
    use: Use,
    after: After = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
    last: LastEventId = None,
    at: At = None,
) -> Any:
    """The events of the plan that are about this study: a page, or server-sent events with `id` = position.

    Positions are counted from the submission, which is 1. Those of other studies' events are left out.

    The stream goes on until the study is over, which it says with the event "end". After a break, come back with
    `Last-Event-ID`.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        return _stream(use, row, after if last is None else last)
    return reading.events(use, row, limit, after, cursor, at)


def _stream(use: ApiServices, row: StudyRecord, after: int) -> Response:
    feed = use.feed(row, after)
    with use.open_study(row) as (plan, study):
        if study.is_final and feed.version >= plan.version:
            return Response(status_code=204)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventSourceResponse(use.broadcasts.follow(feed), headers=headers)
