"""The service itself: its slots, whether it is there, whether it is ready, and its numbers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from app.api import metrics, schemas, views
from app.api.errors import MEDIA_TYPE, answer
from app.api.openapi import REF, refusals
from app.api.services import Use

slots = APIRouter(tags=["service"])
router = APIRouter(tags=["service"])

NOT_READY = {
    "description": "Something it needs is not there; `checks` says what.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF}Problem"}}},
}
NUMBERS = {
    "description": "The numbers.",
    "content": {"text/plain": {"example": 'stagetree_studies{state="running"} 1\n'}},
}


@slots.get("/slots", summary="The slots, and what they do", response_model=schemas.SlotPage, responses=refusals())
def list_slots(use: Use) -> dict[str, Any]:
    """All of them, by name."""
    with use.records.read() as rows:
        chains = {row.chain: row for row in rows.chains.live()}
        slots, now = rows.slots.all(), rows.now()
    items = [views.slot(row, chains.get(row.chain or ""), now, use.lease_seconds) for row in slots]
    return {"items": items, "next_cursor": None}


@router.get("/healthz", summary="Whether the server is there", response_model=schemas.Health)
async def healthz() -> dict[str, str]:
    """Looks at nothing else."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    summary="Whether the service can work",
    response_model=schemas.Readiness,
    responses={503: NOT_READY},
)
def readyz(request: Request, use: Use) -> Any:
    """Looks at the database, its schema, broker, store, scheduler and slots, for a second at most.

    It is about the whole service; whether this server answers is `/healthz`.
    """
    checks = use.checks.ask()
    failed = [name for name, said in checks.items() if said != "ok"]
    if failed:
        return answer(request, 503, f"Not ready: {', '.join(failed)}.", checks=checks)
    return {"status": "ok", "checks": checks}


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=PlainTextResponse,
    responses={200: NUMBERS, **refusals()},
)
def get_metrics(use: Use) -> Response:
    """Studies, slots and chains by state, the head of the log, and what `/readyz` says."""
    return PlainTextResponse(metrics.text(use), media_type="text/plain; version=0.0.4; charset=utf-8")
