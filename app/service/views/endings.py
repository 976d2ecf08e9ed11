"""What ended a study before all its trials were done, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain import results
from app.domain.search_plan import Study
from app.domain.states import StudyState, TrialEventKind


def ending_text(study: Study) -> str | None:
    """A sentence for people; None where nothing did."""
    match ending := study.ending or _by_its_tuner(study):
        case {"by": "target", "target": target}:
            return f"target {target:g} reached: {_where(ending)}"
        case {"by": "patience", "patience": patience}:
            return f"patience at its end: no better result among the last {patience} than {_where(ending)}"
        case {"by": "max_time", "max_time": seconds}:
            return f"max_time is up: {seconds:g} seconds"
    return None


def _by_its_tuner(study: Study) -> Mapping[str, Any]:
    """Why `pop` wanted nothing more of a completed study: it ends the trials, and those ends are what is recorded."""
    tuner = study.tuner
    if study.state != StudyState.COMPLETED or tuner.get("kind") != "pop":
        return {}
    overs = {event.reason.get("over") for event in study.history if event.kind == TrialEventKind.STOP}
    if "time" in overs:
        return {"by": "max_time", "max_time": tuner.get("max_time") or study.spec["max_time"]}
    return _reached(study, tuner)


def _reached(study: Study, tuner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first result that came to the last target of the tuner's own; empty where none did."""
    targets, sign = tuner.get("target"), results.sign(study)
    if targets is None:
        return {}
    last = targets[-1] if isinstance(targets, list) else targets
    for event in study.history:
        value = event.metrics.get(study.metric) if event.kind == TrialEventKind.RESULT else None
        if value is not None and sign * (value - last) <= 0:
            return {"by": "target", "target": last, "value": value, "trial": event.trial, "steps": event.steps}
    return {}


def _where(ending: Mapping[str, Any]) -> str:
    return f"{ending['value']:.6g} of trial {ending['trial']} after {ending['steps']} steps"
