"""What goes with a study beside its events: the route does it, and the command line on a store without a server."""

from __future__ import annotations

import shutil
from pathlib import Path

from app.api.services import Services
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.ids import StudyId
from app.events.tables import StudyRow
from app.events.transact import Write, transact


def delete_study(use: Services, row: StudyRow) -> None:
    """Let go of a study that is over. Raises `Conflict` where it is not."""
    command = c.DeleteStudy(study=StudyId(row.id), at=use.clock())
    write = Write(stream=row.stream, decide=lambda plan: decide(plan, command, use.limits), at=command.at)
    transact(use.log, use.plans, write)
    delete_logs(use.logs, row.id)


def delete_logs(logs: Path | None, study: str) -> None:
    """What its trials printed, as far as it is kept here."""
    if logs is not None:
        shutil.rmtree(logs / study, ignore_errors=True)
