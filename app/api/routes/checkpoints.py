"""Take the weights of a trial away."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from app.api.files.checkpoints import kept_state, parts
from app.api.openapi import refusals
from app.api.requests.strict import StrictRoute
from app.api.services import StudyRowDep, Use

router = APIRouter(prefix="/studies/{study}", tags=["studies"], route_class=StrictRoute)

Trial = Annotated[int | None, Query(ge=0, description="the trial's number; the best one if left out")]
Step = Annotated[int | None, Query(ge=1, description="where its value was measured, if left out")]
Holds = Annotated[
    Literal["weights", "state"],
    Query(description="`weights` of the model, by its own names, or the whole `state`, for `stagetree.load_state`"),
]
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A safetensors file; `Content-Disposition` names it after study, trial and step.",
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"},
                "example": "the bytes of a safetensors file",
            }
        },
    }
}


@router.get(
    "/checkpoint",
    summary="Get the weights of a trial",
    response_class=StreamingResponse,
    responses={**FILE, **refusals(404)},
)
def get_checkpoint(
    row: StudyRowDep, use: Use, trial: Trial = None, step: Step = None, holds: Holds = "weights"
) -> StreamingResponse:
    """Of the trial that is best now, unless another is named. A refusal says at which steps a state is kept."""
    with use.open_study(row) as (plan, study):
        kept = kept_state(plan, study, trial, step)
    whole = holds == "state"
    content = parts(use.store, kept.checkpoint, whole=whole)
    first = next(content)  # what is wrong with it is found before anything is sent
    name = f'attachment; filename="{row.id}-{kept.file_name(whole=whole)}"'
    headers = {"Content-Disposition": name, "Content-Encoding": "identity"}  # numbers hardly become smaller
    media_type = "application/octet-stream"
    return StreamingResponse(map(bytes, chain([first], content)), media_type=media_type, headers=headers)
