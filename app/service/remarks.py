"""What people write about a study, also when it is over: notes, tags and attributes."""

from __future__ import annotations

from typing import Any

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.terms import ANYBODY, Principal, StudyId
from app.events import StudyRecord
from app.service import reading
from app.service.services import Services, Write
from app.service.views import documents, plans
from stagetree.models.service import Event
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Note

Json = dict[str, Any]


def add_note(
    use: Services, row: StudyRecord, write: Write, text: str, trial: int | None, who: Principal = ANYBODY
) -> Event:
    """The event. Raises `Unknown` where there is no such trial, and `Refused` for a text that is none or too long."""
    command = c.AddNote(study=StudyId(row.id), text=text, trial=trial, at=use.clock(), by=who.name)
    (recorded,) = write(row.stream, lambda plan: decide(plan, command, use.limits))
    with use.open_study(row) as (_, study):
        return plans.event(recorded, study.submitted_version - 1)


def correct_note(
    use: Services, row: StudyRecord, write: Write, event: int, text: str, who: Principal = ANYBODY
) -> Note:
    """The note that `event` added, with its new text. Raises `Unknown` where that is no note, `Refused` as above."""
    command = c.CorrectNote(study=StudyId(row.id), event=event, text=text, at=use.clock(), by=who.name)
    write(row.stream, lambda plan: decide(plan, command, use.limits))
    with use.open_study(row) as (_, study):
        return next(note for each in study.notes if (note := documents.note(study, each)).event == event)


def label(use: Services, row: StudyRecord, write: Write, wanted: Json, who: Principal = ANYBODY) -> StudyAnswer:
    """The study with its tags and attributes. wanted: `add`, `remove`, `attributes`. Raises `Refused`."""
    command = c.LabelStudy(
        study=StudyId(row.id),
        add=tuple(wanted.get("add", ())),
        remove=tuple(wanted.get("remove", ())),
        attributes=wanted.get("attributes", {}),
        at=use.clock(),
        by=who.name,
    )
    write(row.stream, lambda plan: decide(plan, command, use.limits))
    return reading.study(use, row, with_trials=False)[0]
