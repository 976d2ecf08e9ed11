"""The allowance of a token: how much slot time its studies may take, enforced on the events that a command decides.

Each study of such a token has `max_slot_seconds`, at which it is ended as by any budget. So open studies hold a bounded
time, and the next study gets at most the rest. Requests for further work stay within the budgets of their studies; a
reopened study gets a new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.domain import events as e
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import Refused, StateConflict

FIELD = "max_slot_seconds"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowance of a token, in seconds of slots.

    held: used by its studies that are over, and used or reserved by its open ones.
    """

    token: str
    slot_seconds: float
    held: float = 0.0

    @property
    def left(self) -> float:
        """The time for further studies."""
        return max(0.0, _whole_milliseconds(self.slot_seconds - self.held))


def held_seconds(plan: SearchPlan, study: Study) -> float:
    """The slot time that a study holds of its owner's allowance.

    A study that is over holds its budget until its last chain has ended, which is charged only then.
    """
    most = study.spec.max_slot_seconds
    is_working = any(stage.study == study.id for chain in plan.chains.values() for stage in chain.stages)
    return study.gpu_seconds if most is None or (study.is_final and not is_working) else max(most, study.gpu_seconds)


def limit_to_allowance(plan: SearchPlan, events: Iterable[e.Event], allowance: Allowance) -> tuple[e.Event, ...]:
    """The events of a command by a token, with budgets that its allowance pays for. Raises `Refused`, `StateConflict`.

    plan: before the events.
    """
    return tuple(_limit(plan, event, allowance) for event in events)


def _limit(plan: SearchPlan, event: e.Event, allowance: Allowance) -> e.Event:
    match event:
        case e.StudySubmitted():
            return replace(event, spec=_submitted_spec(event.spec, allowance))
        case e.StudyReopened():
            return replace(event, spec=_reopened_spec(_own(plan, event, allowance), event.spec, allowance))
        case e.TrialAdded() | e.TrialExtended() | e.TrialRetried() | e.StudyResumed():
            _own(plan, event, allowance)
        case e.ConfigurationSuggested() if event.study in plan.studies:  # else it came with its study
            _own(plan, event, allowance)
        case e.AuditRequested() | e.StudyDeleted():
            why = "an audit ends at no budget" if isinstance(event, e.AuditRequested) else "its use must stay on record"
            raise StateConflict(f"token {allowance.token} has a budget of slot time, and {why}: ask an operator")
    return event


def _submitted_spec(spec: e.Json, allowance: Allowance) -> e.Json:
    _check_left(allowance)
    asked = spec.get(FIELD)
    if asked is not None and asked > allowance.left:
        left = f"the {allowance.left:g} s that token {allowance.token} has left"
        raise Refused(f"{FIELD}: must be at most {left} of its {allowance.slot_seconds:g} s, got {asked:g}")
    return {**spec, FIELD: allowance.left if asked is None else asked}


def _reopened_spec(study: Study, spec: e.Json, allowance: Allowance) -> e.Json:
    _check_left(allowance)
    most = _whole_milliseconds(study.gpu_seconds + allowance.left)
    return {**spec, FIELD: min(most, spec.get(FIELD) or most)}


def _whole_milliseconds(seconds: float) -> float:
    """Round down, so that all budgets stay within the allowance. Float errors below a nanosecond do not count."""
    return math.floor(round(seconds * 1000, 6)) / 1000


def _check_left(allowance: Allowance) -> None:
    if not allowance.left:
        how = "give running studies a smaller max_slot_seconds, stop one, or ask for another token"
        whole = f"all {allowance.slot_seconds:g} s of its slot time"
        raise StateConflict(f"token {allowance.token} has used, or reserved for its running studies, {whole}: {how}")


def _own(plan: SearchPlan, event: e.Event, allowance: Allowance) -> Study:
    """The study of an event, which must be paid for by the token's allowance."""
    study = plan.studies[event.study]  # type: ignore[union-attr]
    if study.owner != allowance.token or study.spec.max_slot_seconds is None:
        whose = f"belongs to {study.owner or 'no token'}" if study.owner != allowance.token else f"has no {FIELD}"
        why = "has a budget of slot time, and trains within the budgets of its own studies alone"
        raise StateConflict(f"study {study.id} {whose}: token {allowance.token} {why}")
    return study
