"""What people write about a study: notes, tags and attributes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter

from app.api.access import Who
from app.api.errors import refusals
from app.api.remark_bodies import CorrectionBody, LabelsBody, NoteBody, correction_of, labels_of, note_of
from app.api.services import ServicesDep, StudyRowDep
from app.api.strict import StrictRoute, WriterDep
from app.service import remarks
from stagetree.models.service import Event
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Note

router = APIRouter(prefix="/studies/{study}", tags=["studies"], route_class=StrictRoute)
NotePath = Annotated[int, PathParameter(description="the event that added the note", examples=[42])]


@router.post(
    "/notes",
    status_code=201,
    summary="Write something down",
    response_model=Event,
    response_description="The event.",
    responses=refusals(400, 404, 413, 415),
)
def add_note(row: StudyRowDep, given: NoteBody, use: ServicesDep, write: WriterDep, who: Who) -> Event:
    """About the study or one of its trials, also when it is over. It is shown with them, and changes nothing."""
    return remarks.add_note(use, row, write, *note_of(given), who)


@router.post(
    "/notes/{event}:correct",
    summary="Correct a note",
    response_model=Note,
    response_description="The note, with its new text.",
    responses=refusals(400, 404, 413, 415),
)
def correct_note(
    row: StudyRowDep, event: NotePath, given: CorrectionBody, use: ServicesDep, write: WriterDep, who: Who
) -> Note:
    """It is named by the event that added it. What it said before stays in the log."""
    return remarks.correct_note(use, row, write, event, correction_of(given), who)


@router.post(
    ":label",
    summary="Tag a study",
    response_model=StudyAnswer,
    response_model_exclude_unset=True,
    response_description="The study, without its trials.",
    responses=refusals(400, 404, 413, 415),
)
def label_study(row: StudyRowDep, given: LabelsBody, use: ServicesDep, write: WriterDep, who: Who) -> StudyAnswer:
    """Add and remove tags, and set attributes, of which null takes one away; also when it is over."""
    return remarks.label(use, row, write, labels_of(given), who)
