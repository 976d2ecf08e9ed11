"""The history of a study in lines, each with the number of its event."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import events as e
from app.domain.search_plan import Study, TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.replay.report import Json, Replay

RUNG = ("rung", "bracket")


def lines(found: Replay, number: int, event: e.Event, study: Study, known: int) -> Iterator[Json]:
    """The lines of history that an event added."""
    for line in study.history[known:]:
        if line.kind in ("start", "promote"):
            found.standing[line.trial] = {name: line.reason[name] for name in RUNG if name in line.reason}
        yield _line(number, study, line, found.standing[line.trial])
    if isinstance(event, e.StudyCompleted | e.StudyFailed | e.StudyCancelled) and event.study == study.id:
        yield {"event": number, "kind": "complete", "state": study.state}


def _line(number: int, study: Study, event: TrialEvent, standing: Json) -> Json:
    line: Json = {"event": number, "kind": event.kind, "trial": event.trial, **standing, "steps": event.steps}
    if event.kind == TrialEventKind.RESULT:
        line |= {"value": event.metrics.get(study.metric), "metrics": dict(event.metrics)}
    return {**line, "reason": dict(event.reason)}
