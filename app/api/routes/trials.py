"""Trials: list, show, add, extend, retry and cancel them, and download their weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from app.api import bodies
from app.api.errors import UNCHANGED, refusals
from app.api.routes.plans import cached_response
from app.api.services import ApiServices, ServicesDep, StudyRowDep, TrialPath, heavy
from app.api.strict import At, Cursor, Limit, Write, WriterDep, api_router
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.terms import StudyId
from app.events import StudyRecord
from app.service import queries, study_changes
from app.service.files import kept_state, parts, trial_metrics
from app.service.views import documents
from stagetree.models.pages import Columns, Logged, TrialBatch, TrialPage
from stagetree.models.trials import TrialDetail, TrialWord

Json = dict[str, Any]

checkpoints = api_router("/studies/{study}", tag="studies")

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


@checkpoints.get(
    "/checkpoint",
    summary="Get the weights of a trial",
    response_class=StreamingResponse,
    responses={**FILE, **refusals(404)},
)
def get_checkpoint(
    row: StudyRowDep, use: ServicesDep, trial: Trial = None, step: Step = None, holds: Holds = "weights"
) -> StreamingResponse:
    """The weights of a trial, by default the best one. A refusal lists the steps with a stored state.

    The metadata of the weights have the trial's mark as `exactness`.
    """
    with use.open_study(row) as (plan, study):
        state = kept_state(plan, study, trial, step)
    whole = holds == "state"
    content = parts(use.store, state.checkpoint, whole=whole, exactness=state.exactness)
    first = next(content)  # errors must come before the first byte is sent
    name = f'attachment; filename="{row.id}-{state.file_name(whole=whole)}"'
    headers = {"Content-Disposition": name, "Content-Encoding": "identity"}  # weights hardly compress
    media_type = "application/octet-stream"
    return StreamingResponse(map(bytes, chain([first], content)), media_type=media_type, headers=headers)


router = api_router("/studies/{study}/trials", tag="trials")
batch = api_router("/studies/{study}", tag="trials")

States = Annotated[Sequence[TrialWord], Query(description="only trials in this state; may be repeated")]
Sort = Annotated[
    str,
    Query(
        max_length=1000,
        description="a field or a column such as hp.lr; results with the best first; -FIELD turns the order around",
    ),
]
Digits = Annotated[
    int | None, Query(ge=2, le=17, description="round numbers to this many digits, for a smaller answer")
]


@router.get(
    "",
    summary="List the trials of a study",
    response_model=TrialPage,
    response_model_exclude_unset=True,
    responses=refusals(404),
)
@heavy
def list_trials(
    row: StudyRowDep,
    use: ServicesDep,
    limit: Limit = 100,
    cursor: Cursor = None,
    state: States = (),
    sort: Sort = "trial",
    at: At = None,
) -> TrialPage:
    """Sorted by number or another key; trials without a value come last.

    No trial appears twice or is skipped while the study runs: later pages are of the moment of the first page. A list
    of all trials by number includes those added since.
    """
    return queries.trials(use, row, limit, cursor, state, sort, at)


@batch.get(
    "/trials:columns",
    summary="All trials by column",
    response_model=Columns,
    response_description="The columns; `ETag` says at which event.",
    responses={304: UNCHANGED, **refusals(404)},
)
async def get_columns(
    request: Request, row: StudyRowDep, use: ServicesDep, digits: Digits = None, at: At = None
) -> Response:
    """For tables and plots: a list for each field, nested ones under names such as `hp.lr` and `best.value`."""
    return await cached_response(
        request, use, row, ("columns", digits), at, lambda: queries.columns(use, row, at, digits)
    )


@router.get(
    "/{number}",
    summary="Look at a trial",
    response_model=TrialDetail,
    response_model_exclude_unset=True,
    responses=refusals(404),
)
def get_trial(row: StudyRowDep, number: TrialPath, use: ServicesDep, at: At = None) -> TrialDetail:
    """The trial with its learning curve and, if it failed, the traceback."""
    return queries.trial(use, row, number, at)


@router.get(
    "/{number}/log",
    summary="What a trial printed",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"example": "epoch 3: loss 0.21\\n"}}}, **refusals(404)},
)
def get_trial_log(row: StudyRowDep, number: TrialPath, use: ServicesDep) -> StreamingResponse:
    """A stage that several trials share is in the log of the one it was run for."""
    return StreamingResponse(queries.trial_log(use, row, number), media_type="text/plain")


@router.get(
    "/{number}/metrics",
    summary="What a trial logged",
    response_model=Logged,
    responses=refusals(404),
)
def get_trial_metrics(row: StudyRowDep, number: TrialPath, use: ServicesDep) -> Logged:
    """The points that its trainer logged with `log`, about one per second, including shared stages."""
    return trial_metrics(use, row, number)


@router.post(
    "",
    status_code=201,
    summary="Add a trial of your own",
    response_model=TrialDetail,
    response_model_exclude_unset=True,
    response_description="The trial; `Location` says where to find it.",
    responses=refusals(400, 404, 409, 413, 415),
)
def add_trial(
    request: Request, response: Response, row: StudyRowDep, body: bodies.TrialBody, use: ServicesDep, write: WriterDep
) -> TrialDetail:
    """It has the hyper-parameters of the study's other trials. Steps shared with them are not trained again."""
    number = study_changes.add_trial(use, row, write, bodies.parse_trial(body))
    response.headers["Location"] = f"{request.url.path}/{number}"
    return get_trial(row, number, use)


@batch.post(
    "/trials:batch",
    summary="Ask for many trials at once",
    response_model=TrialBatch,
    response_model_exclude_unset=True,
    response_description="The trials, in the order asked for.",
    responses=refusals(400, 404, 409, 413, 415),
)
def ask_trials(row: StudyRowDep, body: bodies.TrialsBody, use: ServicesDep, write: WriterDep) -> TrialBatch:
    """Each is a new trial, `{hp, steps}`, or an extension, `{trial, steps}`. All or nothing."""
    return TrialBatch(items=_request_trials(row, bodies.parse_trials(body), use, write))


def _request_trials(
    row: StudyRecord, asks: list[c.Start | c.Extend], use: ApiServices, write: Write
) -> list[TrialDetail]:
    numbers = study_changes.ask(use, row, write, asks)
    with use.open_study(row) as (plan, study):
        return [documents.trial(plan, study.trials[number]) for number in numbers]


@router.post(
    "/{number}:extend",
    summary="Train a trial of your own longer",
    response_model=TrialDetail,
    response_model_exclude_unset=True,
    responses=refusals(400, 404, 409, 413, 415),
)
def extend_trial(
    row: StudyRowDep, number: TrialPath, body: bodies.ExtensionBody, use: ServicesDep, write: WriterDep
) -> TrialDetail:
    """To a new total number of steps, from its last state. A smaller number changes nothing."""
    return _request_trials(row, [bodies.parse_extension(body, number)], use, write)[0]


@router.post(
    "/{number}:retry",
    summary="Try a failed trial again",
    response_model=TrialDetail,
    response_model_exclude_unset=True,
    responses=refusals(404, 409, 413, 415),
)
def retry_trial(row: StudyRowDep, number: TrialPath, use: ServicesDep, write: WriterDep) -> TrialDetail:
    """For all its requested steps, from its last checkpoint. A study that is over is reopened for it.

    The tuner has decided without the trial, and gets no new results of it.
    """
    study_changes.retry_trial(use, row, write, number)
    return get_trial(row, number, use)


@router.delete(
    "/{number}",
    status_code=204,
    summary="Cancel a trial",
    response_description="The trial is not trained any further for this study.",
    responses=refusals(404, 409),
)
def cancel_trial(row: StudyRowDep, number: TrialPath, use: ServicesDep, write: WriterDep) -> None:
    """Steps that other trials share are still trained."""
    command = c.CancelTrial(study=StudyId(row.id), trial=number)
    write(row.stream, lambda plan: decide(plan, command))
