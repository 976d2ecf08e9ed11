"""What people write about a study: notes, tags and attributes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field

from app.api.access import Who
from app.api.bodies import Json, is_count, typed, valid
from app.api.errors import refusals
from app.api.services import ServicesDep, StudyRowDep
from app.api.strict import StrictRoute, WriterDep
from app.domain.decide import MOST_CHARACTERS
from app.service import queries, study_changes
from stagetree.models.service import Event
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Note
from stagetree.spec import Problem as SpecProblem
from stagetree.spec import SpecError, shorten

router = APIRouter(prefix="/studies/{study}", tags=["studies"], route_class=StrictRoute)
NotePath = Annotated[int, PathParameter(description="the event that added the note", examples=[42])]


class NoteText(BaseModel):
    """Something to write down."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")
    trial: int | None = Field(default=None, ge=0, description="the trial that it is about; null: the whole study")


class Correction(BaseModel):
    """Another text for a note."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")


class LabelsWanted(BaseModel):
    """Tags to add and to remove, and attributes to set."""

    model_config = ConfigDict(extra="forbid", strict=True)
    add: list[str] = Field(default=[], description="words without a comma or =")
    remove: list[str] = []
    attributes: Json = Field(default={}, description="values by name; null takes one away")


def note_of(body: Any) -> tuple[str, int | None]:
    """The text of a note, and the trial that it is about. Raises `SpecError`."""
    fields = body if isinstance(body, dict) else {}
    problems = [SpecProblem(name, "is no field of a note: there are text, trial") for name in fields.keys() - NOTE]
    if not isinstance(fields.get("text"), str):
        problems.append(SpecProblem("text", f"must be the text of the note, got {shorten(fields.get('text'))}"))
    if (trial := fields.get("trial")) is not None and not is_count(trial, 0):
        problems.append(
            SpecProblem("trial", f"must be the number of a trial, from 0 on, or null, got {shorten(trial)}")
        )
    if problems:
        raise SpecError(problems)
    return fields["text"], trial


def correction_of(body: Any) -> str:
    """The new text of a note. Raises `SpecError`."""
    return valid(Correction, body).text


NOTE = {"text": "diverges after the warm-up", "trial": 3}
NoteBody: Any = typed(NoteText, NOTE)
CorrectionBody: Any = typed(Correction, {"text": "diverges after step 40"})
LabelsBody: Any = typed(LabelsWanted, {"add": ["paper"], "remove": ["draft"], "attributes": {"dataset": "v3"}})


@router.post(
    "/notes",
    status_code=201,
    summary="Write something down",
    response_model=Event,
    response_description="The event.",
    responses=refusals(400, 404, 413, 415),
)
def add_note(row: StudyRowDep, body: NoteBody, use: ServicesDep, write: WriterDep, who: Who) -> Event:
    """About the study or one of its trials, also when it is over. It is shown with them, and changes nothing."""
    return study_changes.add_note(use, row, write, *note_of(body), who)


@router.post(
    "/notes/{event}:correct",
    summary="Correct a note",
    response_model=Note,
    response_description="The note, with its new text.",
    responses=refusals(400, 404, 413, 415),
)
def correct_note(
    row: StudyRowDep, event: NotePath, body: CorrectionBody, use: ServicesDep, write: WriterDep, who: Who
) -> Note:
    """It is named by the event that added it. Its earlier text stays in the log."""
    study_changes.correct_note(use, row, write, event, correction_of(body), who)
    return next(note for note in queries.study(use, row, with_trials=False)[0].notes if note.event == event)


@router.post(
    ":label",
    summary="Tag a study",
    response_model=StudyAnswer,
    response_model_exclude_unset=True,
    response_description="The study, without its trials.",
    responses=refusals(400, 404, 413, 415),
)
def label_study(row: StudyRowDep, body: LabelsBody, use: ServicesDep, write: WriterDep, who: Who) -> StudyAnswer:
    """Add and remove tags, and set attributes, of which null takes one away; also when it is over."""
    labels = valid(LabelsWanted, body)
    study_changes.label(use, row, write, labels.add, labels.remove, labels.attributes, who)
    return queries.study(use, row, with_trials=False)[0]
