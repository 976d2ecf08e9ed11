"""A study goes on, pauses or ends."""

from __future__ import annotations

from app.domain import awaiting
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan
from app.domain.states import StudyState, TrialState


def set_state(plan: SearchPlan, study: StudyId, state: StudyState) -> None:
    """The study is in another state, and what is outstanding of it may be another."""
    plan.studies[study].state = state
    plan.touched.update(plan.studies[study].deepest)


def finish(plan: SearchPlan, study: StudyId, state: StudyState, at: float) -> None:
    """The study is over: nobody waits for its trials any more."""
    for trial in plan.studies[study].trials:
        for step in sorted(trial.unevaluated):
            awaiting.leave_unevaluated_by(plan, trial, step)
        if trial.state == TrialState.ACTIVE:
            awaiting.end_trial(plan, trial, TrialState.CANCELLED)
    set_state(plan, study, state)
    plan.studies[study].finished_at = at
    plan.unheard.pop(study, None)
