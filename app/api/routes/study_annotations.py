"""Annotations of a study: notes, tags and attributes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path as PathParameter
from pydantic import Field

from app.api.access import Who
from app.api.bodies import Json, parse, typed
from app.api.errors import refusals
from app.api.services import ServicesDep, StudyRowDep
from app.api.strict import WriterDep, api_router
from app.domain.decide import MOST_CHARACTERS
from app.service import queries, study_changes
from stagetree.models.service import Event
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Note
from stagetree.spec.fields import SpecPart

router = api_router("/studies/{study}", tag="studies")
NotePath = Annotated[int, PathParameter(description="the event that added the note", examples=[42])]


Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        pattern=r"\S",
        description=f"a text of 1 to {MOST_CHARACTERS} characters, not only spaces",
    ),
]


class NoteText(SpecPart):
    """A note on a study."""

    text: Text
    trial: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="the number of the trial that it is about, from 0 on, or null for the whole study"
    )


class Correction(SpecPart):
    """Another text for a note."""

    text: Text


class LabelsWanted(SpecPart):
    """Tags to add and to remove, and attributes to set."""

    add: list[str] = Field(default=[], description="words without a comma or =, in a list")
    remove: list[str] = Field(default=[], description="tags, in a list")
    attributes: Json = Field(default={}, description="an object from name to value, where null removes the attribute")


NoteBody: Any = typed(NoteText, {"text": "diverges after the warm-up", "trial": 3})
CorrectionBody: Any = typed(Correction, {"text": "diverges after step 40"})
LabelsBody: Any = typed(LabelsWanted, {"add": ["paper"], "remove": ["draft"], "attributes": {"dataset": "v3"}})


@router.post(
    "/notes",
    status_code=201,
    summary="Add a note",
    response_model=Event,
    response_description="The event.",
    responses=refusals(400, 404, 413, 415),
)
def add_note(row: StudyRowDep, body: NoteBody, use: ServicesDep, write: WriterDep, who: Who) -> Event:
    """About the study or one of its trials, also when it is over. It changes no result."""
    note = parse(NoteText, body)
    return study_changes.add_note(use, row, write, note.text, note.trial, who)


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
    """The path has the event that added the note. The earlier text stays in the log."""
    study_changes.correct_note(use, row, write, event, parse(Correction, body).text, who)
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
    """Add and remove tags, and set attributes (null removes one), also when the study is over."""
    labels = parse(LabelsWanted, body)
    study_changes.label(use, row, write, labels.add, labels.remove, labels.attributes, who)
    return queries.study(use, row, with_trials=False)[0]
