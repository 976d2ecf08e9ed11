"""The service itself: slots, demand, trainers, health, readiness and metrics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import PlainTextResponse, Response

from app.api.access import Who
from app.api.errors import MEDIA_TYPE, REF, answer, refusals
from app.api.metrics import metrics_text
from app.api.services import ServicesDep
from app.api.strict import Cursor, Limit, StrictRoute, api_router, operation_id
from app.service import queries, study_changes
from stagetree.models.pages import Demand, Health, Readiness, SlotPage, TrainerPage

SlotPath = Annotated[str, PathParameter(description="the name of a slot", examples=["gpu0"])]
Kind = Annotated[str | None, Query(max_length=100, description="only slots of this kind of GPU, and work for it")]
CountsAny = Annotated[bool, Query(alias="any", description="with the work that any kind may have, if a kind is named")]
Estimates = Annotated[bool, Query(description="and how far the estimates of their stages were off, which takes longer")]

slots = api_router(tag="service")
router = APIRouter(tags=["service"], route_class=StrictRoute, generate_unique_id_function=operation_id)

NOT_READY = {
    "description": "Something it needs is not there; `checks` says what.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF}Problem"}}},
}
NUMBERS = {
    "description": "The numbers.",
    "content": {"text/plain": {"example": 'stagetree_studies{state="running"} 1\n'}},
}


@slots.get("/slots", summary="The slots, and their work", response_model=SlotPage, responses=refusals())
def list_slots(
    use: ServicesDep, who: Who, limit: Limit = 100, cursor: Cursor = None, estimates: Estimates = False
) -> SlotPage:
    """All of them, by name."""
    return queries.slots(use, limit, cursor, who, estimates=estimates)


@slots.get(
    "/demand",
    summary="How many slots would have work now",
    response_model=Demand,
    responses=refusals(503),
)
def get_demand(use: ServicesDep, kind: Kind = None, counts_any: CountsAny = False) -> Demand:
    """For autoscalers: how many more slots would be busy at once, and which slots are idle.

    The scheduler reports it every few seconds. The answer is 503 if it has not reported for the time of a lease.
    """
    return queries.demand(use, kind, counts_any=counts_any)


@slots.post(
    "/slots/{name}:release",
    status_code=204,
    summary="End the quarantine of a slot",
    response_description="It is given chains again.",
    responses=refusals(404),
)
def release_slot(name: SlotPath, use: ServicesDep) -> None:
    """Its worker quarantines it again if it is still unhealthy."""
    study_changes.release_slot(use, name)


@slots.get(
    "/trainers",
    summary="The trainers that studies may name",
    response_model=TrainerPage,
    responses=refusals(),
)
def list_trainers(use: ServicesDep, limit: Limit = 100, cursor: Cursor = None) -> TrainerPage:
    """All of them, by name, each with the version that is part of a plan's identity."""
    return queries.trainers(use, limit, cursor)


@router.get("/healthz", summary="Whether the server is there", response_model=Health)
async def healthz() -> Health:
    """Checks nothing else."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Whether the service can work",
    response_model=Readiness,
    responses={503: NOT_READY},
)
def readyz(request: Request, use: ServicesDep) -> Any:
    """Checks the database, its schema, broker, store, scheduler and slots, for a second at most.

    It is about the whole service; `/healthz` is about this server.
    """
    checks = use.checks.ask()
    failed = [f"{name}: {answer}" for name, answer in checks.items() if answer != "ok"]
    if failed:
        return answer(request, 503, f"Not ready: {'; '.join(failed)}", checks=checks)
    return Readiness(status="ok", checks=checks)


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=PlainTextResponse,
    responses={200: NUMBERS, **refusals()},
)
def get_metrics(request: Request, use: ServicesDep) -> Response:
    """The checks of `/readyz`; studies, slots, failures, backlogs, memory and times of requests.

    While the database does not answer, so that no token can be checked, a token gets the checks alone.
    """
    text = metrics_text(use, is_known=request.state.principal is not None)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
