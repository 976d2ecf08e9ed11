"""A study's search plan, stage tree, events, charts, and the replay of its decisions.

The answers of charts are cached until the next event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.api.bodies import ChangesBody, ChangesWanted, parse
from app.api.errors import UNCHANGED, refusals
from app.api.services import ApiServices, Key, ServicesDep, StudyRowDep, TrialPath, computed, heavy
from app.api.strict import POSITION, At, Cursor, Limit, api_router
from app.events import StudyRecord
from app.service import chart_data, html_report, queries
from stagetree.models.pages import (
    Environments,
    EventPage,
    History,
    Imagined,
    Importance,
    Rungs,
    Schedules,
    SideBySide,
    Timeline,
    Tree,
)
from stagetree.models.service import Replay
from stagetree.models.trials import Plan, StageTree

Public = Annotated[bool, Query(description="without paths, hosts, addresses and names of people")]
Url = Annotated[str, Query(max_length=2000, description="where the file will be, so that links to it show a picture")]
FilmFormat = Annotated[
    Literal["svg", "gif", "png"], Query(description="a GIF, and a PNG of the end, need Pillow on the server")
]
router = api_router("/studies/{study}", tag="plans")

Json = dict[str, Any]
After = Annotated[int, Query(ge=0, le=POSITION, description="leave out the events up to this position")]
Before = Annotated[
    int | None, Query(ge=1, le=POSITION, description="instead of `after`: the last events before this position")
]
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=POSITION, description="the same, for a stream that broke")
]
STREAM = {"description": "A page or, with `Accept: text/event-stream`, a stream.", "content": {"text/event-stream": {}}}


@router.get("/plan", summary="The search plan that a study is part of", response_model=Plan, responses=refusals(404))
@heavy
def get_plan(row: StudyRowDep, use: ServicesDep, at: At = None) -> Plan:
    """All nodes of the plan, also those of other studies."""
    return queries.plan(use, row, at)


@router.get("/stage-tree", summary="The outstanding stages", response_model=StageTree, responses=refusals(404))
@heavy
def get_stage_tree(row: StudyRowDep, use: ServicesDep, at: At = None) -> StageTree:
    """The stages that no slot is training yet. Empty for a study that is paused or over."""
    return queries.stage_tree(use, row, at)


@router.get(
    "/environment",
    summary="What a study is trained with",
    response_model=Environments,
    responses=refusals(404),
)
def get_environment(row: StudyRowDep, use: ServicesDep) -> Environments:
    """Packages, driver and the trainer's repository, by kind of device, as the plan's first slot reported them."""
    return queries.environment(use, row)


@router.get(
    "/events",
    summary="The events, as a page or a stream",
    response_model=EventPage,
    responses={200: STREAM, 204: {"description": "The study is over, and the stream holds no more."}, **refusals(404)},
)
def list_events(
    request: Request,
    row: StudyRowDep,
    use: ServicesDep,
    after: After = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
    last: LastEventId = None,
    before: Before = None,
    at: At = None,
) -> Any:
    """The events of the plan that are about this study: a page, or server-sent events with `id` = position.

    Positions count from the submission, which is 1. Events of other studies leave gaps. With `before`, the page has the
    last `limit` events of the study before that position, in their order.

    The stream ends with the event "end" when the study is over. Resume a broken stream with `Last-Event-ID`.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        return _stream(use, row, after if last is None else last)
    return queries.events(use, row, limit, after, cursor, at, before)


def _stream(use: ApiServices, row: StudyRecord, after: int) -> Response:
    feed = use.feed(row, after)
    with use.open_study(row) as (plan, study):
        if study.is_final and feed.version >= plan.version:
            return Response(status_code=204)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventSourceResponse(use.broadcasts.follow(feed), headers=headers)


async def cached_response(
    request: Request, use: ApiServices, row: StudyRecord, key: Key, at: int | None, make: Callable[[], BaseModel]
) -> Response:
    """The answer of `make` at the event `at`, or now; made once for each moment."""
    moment = (
        f"at{at}" if at is not None else await use.single_flight.do(("version", row.stream), lambda: use.version(row))
    )
    key = (*key, row.id, at)
    answer = use.answers.find(key, moment)
    if answer is None:
        async with use.turns.turn(row.id, request.state.principal):
            answer = await run_in_threadpool(use.answers.get, key, moment, make)
    return (
        await run_in_threadpool(answer.response, request)
        if answer.needs_unpacking(request)
        else answer.response(request)
    )


pictures = api_router("/studies/{study}", tag="pictures")

Points = Annotated[int, Query(ge=4, le=1000, description="the most points of a curve")]
Rung = Annotated[
    Annotated[int, Field(ge=0)] | Literal["end"] | None,
    Query(
        description="by the results at this rung, or at each trial's end; "
        "without it, at the furthest rung with 30 results, or else the `telling` one, where there are some"
    ),
]


def _picture(path: str, summary: str, model: Any) -> Json:
    return {
        "path": path,
        "summary": summary,
        "response_model": model,
        "response_description": "The columns; `ETag` says at which event.",
        "responses": {304: UNCHANGED, **refusals(404)},
    }


@pictures.get(**_picture("/tree", "What its trials share", Tree))
async def get_tree(
    request: Request, row: StudyRowDep, use: ServicesDep, points: Points = 60, at: At = None
) -> Response:
    """The study's part of the search plan, with the curve of the metric in each node."""
    return await cached_response(request, use, row, ("tree", points), at, lambda: chart_data.tree(use, row, points, at))


@pictures.get(**_picture("/rungs", "Who came how far", Rungs))
async def get_rungs(request: Request, row: StudyRowDep, use: ServicesDep, at: At = None) -> Response:
    """Each rung with its trials by rank, and the promoted ones. Empty for a tuner without rungs."""
    return await cached_response(request, use, row, ("rungs",), at, lambda: chart_data.rungs(use, row, at))


@pictures.get(**_picture("/timeline", "What each slot did", Timeline))
async def get_timeline(request: Request, row: StudyRowDep, use: ServicesDep, at: At = None) -> Response:
    """Stages over time, with evaluations and checkpoints. Other studies on the plan are included."""
    return await cached_response(request, use, row, ("timeline",), at, lambda: chart_data.timeline(use, row, at))


@pictures.get(**_picture("/side-by-side", "With sharing, and computed without it", SideBySide))
async def get_side_by_side(request: Request, row: StudyRowDep, use: ServicesDep, at: At = None) -> Response:
    """Two schedules of slots on one clock: the real one, and a computed one in which each trial is trained alone."""
    make = partial(chart_data.sharing_comparison, use, row, at)
    return await cached_response(request, use, row, ("side-by-side",), at, make)


@pictures.get(**_picture("/history", "The decisions, with their times", History))
async def get_history(request: Request, row: StudyRowDep, use: ServicesDep, at: At = None) -> Response:
    """The decisions about trials and the study, the successive best results, and the times of events."""
    return await cached_response(request, use, row, ("history",), at, lambda: chart_data.history(use, row, at))


@pictures.get(**_picture("/importance", "What the result depends on", Importance))
async def get_importance(
    request: Request, row: StudyRowDep, use: ServicesDep, rung: Rung = None, at: At = None
) -> Response:
    """The share of each hyper-parameter that varies, by Optuna's PED-ANOVA."""
    key = ("importance", rung)
    return await cached_response(request, use, row, key, at, lambda: chart_data.importance(use, row, rung, at))


@pictures.get(
    "/trials/{number}/schedules",
    summary="What a trial's hyper-parameters do",
    response_model=Schedules,
    responses=refusals(404),
)
def get_schedules(row: StudyRowDep, number: TrialPath, use: ServicesDep, points: Points = 60) -> Schedules:
    """Their values over its steps, to draw them."""
    return chart_data.schedules(use, row, number, points)


replays = api_router("/studies/{study}", tag="replay")

ReplayedTo = Annotated[int | None, Query(ge=1, description="replay only as far as the event at this position")]
LINE = (
    '{"position": 7, "version": 7, "at": 1789000000.0, "type": "StudyPaused", "schema": 1,'
    ' "data": {"study": "digits-asha-3f9c1a"}}'
)


@replays.post(
    ":replay",
    summary="Derive every decision again",
    response_model=Replay,
    response_model_exclude_unset=True,
    responses=refusals(404),
)
@computed
def replay_study(row: StudyRowDep, use: ServicesDep, at: ReplayedTo = None) -> Replay:
    """Fold the log, ask the tuner again at every decision, and compare: `identical` is false if one differs."""
    return html_report.replay(use, row, at)


@replays.post(
    ":what-if",
    summary="What another tuner would have decided",
    response_model=Imagined,
    responses=refusals(400, 404, 413, 415),
)
@computed
def imagine_study(row: StudyRowDep, body: ChangesBody, use: ServicesDep, at: ReplayedTo = None) -> Imagined:
    """Over the results that exist: nothing is trained, and nothing is changed."""
    return html_report.replay_with_changes(use, row, parse(ChangesWanted, body).changes, at)


@replays.get(
    "/report",
    summary="The study as one file to look at",
    response_class=HTMLResponse,
    responses={200: {"content": {"text/html": {"example": "<!doctype html>"}}}, **refusals(404)},
)
@heavy
def get_report(row: StudyRowDep, use: ServicesDep, public: Public = False, url: Url = "") -> HTMLResponse:
    """The page with the study's data as of now. It works without a server and without a network.

    With its future address as `url`, link previews show the picture beside it: the film as `png`, under the same
    address with the suffix `.png`.
    """
    name = f'attachment; filename="{row.id}.html"'
    text = html_report.report(use, row, public=public, url=url)
    return HTMLResponse(text, headers={"Content-Disposition": name})


FILMS = {"svg": "image/svg+xml", "gif": "image/gif", "png": "image/png"}
EXAMPLES_OF_FILMS: Json = {
    "image/svg+xml": {"example": "<svg/>"},
    "image/gif": {"example": "GIF89a"},
    "image/png": {"example": "PNG"},
}


@replays.get(
    "/film",
    summary="How the study came about, as a film",
    response_class=Response,
    responses={
        200: {"content": EXAMPLES_OF_FILMS},
        **refusals(404, 501),
    },
)
@heavy
def get_film(
    row: StudyRowDep, use: ServicesDep, format: FilmFormat = "svg", at: At = None, public: Public = False
) -> Response:
    """A film of ten seconds: the rung tree grows above the slots, with its promotions."""
    return Response(html_report.film(use, row, format, at, public=public), media_type=FILMS[format])


@replays.get(
    "/log",
    summary="The whole log of the study's plan",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"example": LINE}}}, **refusals(404)},
)
def get_log(row: StudyRowDep, use: ServicesDep) -> StreamingResponse:
    """One event per line, also of other studies on the plan. `stagetree replay --log` reads it from a file."""
    return StreamingResponse(html_report.log(use, row), media_type="text/plain")
