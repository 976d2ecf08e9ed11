"""Studies: submit, list, look at, pause, resume, cancel, delete, preview."""

from __future__ import annotations

from collections.abc import Sequence
from operator import call
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import TypeAdapter

from app.api.access import Who
from app.api.bodies import StudyBody, parse_study
from app.api.errors import refusals
from app.api.large_answers import LargeJson
from app.api.services import ApiServices, ServicesDep, StudyRowDep, caching_headers, client_has, computed, etag, heavy
from app.api.strict import At, Cursor, Limit, Raw, Write, WriterDep, api_router
from app.api.turns import LARGE_BYTES
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.terms import StateConflict, StudyId
from app.events import StudyRecord
from app.service import previews, queries, study_changes, submission
from app.service.views import documents
from stagetree.models.pages import StudyPage
from stagetree.models.previews import Preview
from stagetree.models.studies import StudyAnswer, StudyWord

router = api_router(tag="studies")

_study_json = TypeAdapter(StudyAnswer)
"""Writes an answer without a list of its trials: pydantic only warns that it has an iterator."""

Json = dict[str, Any]
Slots = Annotated[int, Query(ge=1, le=10_000, description="the number of slots for the study")]
NumTrials = Annotated[int, Query(ge=1, description="the new number of trials of the study")]
States = Annotated[Sequence[StudyWord], Query(description="only studies in this state; may be repeated")]
Name = Annotated[str | None, Query(max_length=200, description="only studies of this name")]
Project = Annotated[str | None, Query(max_length=64, description="only studies of this project; by default your own")]
WithTrials = Annotated[bool, Query(alias="trials", description="false leaves the trials out, for cheap polling")]


@router.post(
    "/studies",
    status_code=201,
    summary="Submit a study",
    response_model=StudyAnswer,
    response_description="The study as it was submitted; `Location` says where to find it.",
    responses=refusals(400, 413, 415),
)
def submit_study(
    request: Request,
    response: Response,
    body: StudyBody,
    use: ServicesDep,
    raw: Raw,
    write: WriterDep,
    who: Who,
    project: Project = None,
) -> StudyAnswer:
    """The body is the study file as JSON. The same `Idempotency-Key` with the same body is one study."""
    compute = use.compute if len(raw) > LARGE_BYTES else call
    spec, trainer = parse_study(body, use.trainers, use.limits, compute)
    submitted = submission.submit(use, write, spec, trainer, who, project)
    plan = fold(submitted)
    study = next(iter(plan.studies.values()))
    response.headers["Location"] = f"{request.url.path}/{study.id}"
    return documents.study(plan, study.id, now=study.submitted_at)


@router.get("/studies", summary="List studies, newest first", response_model=StudyPage, responses=refusals())
def list_studies(
    use: ServicesDep,
    limit: Limit = 100,
    cursor: Cursor = None,
    state: States = (),
    name: Name = None,
    *,
    who: Who,
    project: Project = None,
) -> StudyPage:
    """Studies that are submitted meanwhile do not appear on later pages, and no study appears twice."""

    def is_meant(other: str) -> bool:
        return who.can_see(other) and project in (None, other)

    return queries.studies(use, limit, cursor, state, name, is_meant)


@router.get(
    "/studies/{study}",
    summary="Look at a study",
    response_model=StudyAnswer,
    response_model_exclude_unset=True,
    response_description="The study; `ETag` is the version of its plan.",
    responses={304: {"description": "Nothing has changed, and nothing will."}, **refusals(404)},
)
@heavy
def get_study(
    request: Request,
    row: StudyRowDep,
    use: ServicesDep,
    trials: WithTrials = True,
    at: At = None,
) -> Any:
    """Its best trial, its trials, its cost, and its running stages."""
    with queries.showing_study(use, row, with_trials=trials, at=at) as (shown, version):
        headers = caching_headers(tag := etag(version))
        if shown.finished_at and client_has(request, tag):
            return Response(status_code=304, headers=headers)
        text = _study_json.dump_json(shown, by_alias=True, exclude_unset=True, warnings="none")
    return LargeJson(text, headers=headers)


def _command(name: str, summary: str) -> Json:
    return {
        "path": f"/studies/{{study}}:{name}",
        "summary": summary,
        "response_model": StudyAnswer,
        "response_model_exclude_unset": True,
        "response_description": "The study, without its trials.",
        "responses": refusals(404, 409),
    }


@router.post(**_command("pause", "Pause a study"))
def pause_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> StudyAnswer:
    """No stage starts for it until it is resumed. Running stages that no other study needs stop after their step."""
    return _change(use, write, row, c.PauseStudy(study=StudyId(row.id)))


@router.post(**_command("resume", "Resume a paused study"))
def resume_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> StudyAnswer:
    """It continues from its last state."""
    return _change(use, write, row, c.ResumeStudy(study=StudyId(row.id)))


@router.post(**_command("reopen", "Reopen a completed study"))
def reopen_study(row: StudyRowDep, use: ServicesDep, write: WriterDep, num_trials: NumTrials) -> StudyAnswer:
    """With a new total number of trials. Rungs get wider; old results and promotions are kept."""
    return _change(use, write, row, c.ReopenStudy(study=StudyId(row.id), trials=num_trials, at=use.clock()))


@router.post(**_command("cancel", "Cancel a study for good"))
def cancel_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> StudyAnswer:
    """Its results so far remain."""
    return _change(use, write, row, c.CancelStudy(study=StudyId(row.id), at=use.clock()))


@router.post(**_command("audit", "Train every trial that shares steps again, and compare"))
def audit_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> StudyAnswer:
    """Slots train each trial that shares steps again, alone and uninterrupted; `exactness` has the verdict."""
    if not use.proofs:
        raise StateConflict("nothing is compared here: STAGETREE_PROOFS is false")
    return _change(use, write, row, c.RequestAudit(study=StudyId(row.id), at=use.clock()))


@router.post(**_command("complete", "Complete a study whose trials come from outside"))
def complete_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> StudyAnswer:
    """It takes no more trials. Refused while a trial is active."""
    return _change(use, write, row, c.CompleteStudy(study=StudyId(row.id), at=use.clock()))


@router.delete(
    "/studies/{study}",
    status_code=204,
    summary="Delete a study that is over",
    response_description="The study is no longer listed, and its own data is deleted.",
    responses=refusals(404, 409),
)
def delete_study(row: StudyRowDep, use: ServicesDep, write: WriterDep) -> None:
    """Studies that share steps with it lose nothing. Its events stay in the log of its plan."""
    study_changes.delete_study(use, row, write)


def _change(use: ApiServices, write: Write, row: StudyRecord, command: c.Command) -> StudyAnswer:
    write(row.stream, lambda plan: decide(plan, command, use.limits))
    return queries.study(use, row, with_trials=False)[0]


@router.post(
    "/studies:preview",
    summary="What a study would cost; runs nothing",
    response_model=Preview,
    responses=refusals(400, 413, 415),
)
@computed
def preview_study(body: StudyBody, use: ServicesDep, who: Who, slots: Slots = 1) -> Preview:
    """The body is that of a submission, with the same refusals."""
    spec, trainer = parse_study(body, use.trainers, use.limits, use.compute)
    return previews.preview(use, spec, trainer, slots, who)
