"""The rows that follow from the log, written in the transaction that appends: studies and how they stand."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain import events as e
from app.domain.states import StudyState
from app.events.rows.ports import RowsPort
from app.events.rows.values import StudyRecord

STATE_AFTER: dict[type[e.Event], StudyState] = {
    e.StudyPaused: StudyState.PAUSED,
    e.StudyResumed: StudyState.RUNNING,
    e.StudyReopened: StudyState.RUNNING,
    e.StudyCancelled: StudyState.CANCELLED,
    e.StudyCompleted: StudyState.COMPLETED,
    e.StudyFailed: StudyState.FAILED,
    e.StudyStruck: StudyState.FAILED,
}


def project(rows: RowsPort, stream: str, events: Sequence[e.Event]) -> None:
    """Take what was appended to `stream` into the rows of its studies."""
    for event in events:
        if isinstance(event, e.StudySubmitted):
            rows.studies.add(_submitted(stream, event))
        elif isinstance(event, e.StudyDeleted):
            rows.studies.remove(event.study)
        elif isinstance(event, e.AuditRequested | e.AuditEnded):
            rows.studies.set_audited(event.study, isinstance(event, e.AuditRequested))
        elif (state := STATE_AFTER.get(type(event))) is not None:
            rows.studies.set_state(event.study, state)  # type: ignore[union-attr]


def _submitted(stream: str, event: e.StudySubmitted) -> StudyRecord:
    return StudyRecord(
        id=event.study,
        stream=stream,
        name=event.spec["name"],
        state=StudyState.RUNNING,
        submitted_at=event.at,
        begins=event.begin,
        project=event.project,
        owner=event.by,
    )
