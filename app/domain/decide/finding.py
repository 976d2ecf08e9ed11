"""What a command names, if the plan has it."""

from __future__ import annotations

from app.domain.errors import StateConflict, Unknown
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan, Study, Trial


def study_of(plan: SearchPlan, study: StudyId) -> Study:
    if study not in plan.studies or plan.studies[study].deleted:
        raise Unknown(f"there is no study {study}")
    return plan.studies[study]


def open_study_of(plan: SearchPlan, study: StudyId) -> Study:
    return still_open(study_of(plan, study))


def still_open(study: Study) -> Study:
    if study.is_final:
        raise StateConflict(f"study {study.id} is {study.state} and cannot be changed any more")
    return study


def trial_of(study: Study, number: int) -> Trial:
    if not 0 <= number < len(study.trials):
        raise Unknown(f"study {study.id} has no trial {number}: it has {len(study.trials)}, counted from 0")
    return study.trials[number]
