"""What people write down about a study: the route does it, and the command line on a store without a server."""

from __future__ import annotations

from app.api.commands.writing import Write
from app.api.services import Services
from app.api.views import plans
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.ids import StudyId
from app.events.rows import StudyRecord
from stagetree.models.events import Event


def add_note(use: Services, row: StudyRecord, write: Write, text: str, trial: int | None) -> Event:
    """The event. Raises `Unknown` where there is no such trial, and `Refused` for a text that is none or too long."""
    command = c.AddNote(study=StudyId(row.id), text=text, trial=trial, at=use.clock())
    (recorded,) = write(row.stream, lambda plan: decide(plan, command, use.limits))
    with use.open_study(row) as (_, study):
        return plans.event(recorded, study.submitted_version - 1)
