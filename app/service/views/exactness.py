"""A study's exactness, and the marks of trials whose numbers are unchecked or known to differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain import inexact_results
from app.domain.search_plan import SearchPlan, Study, Trial
from app.exactness import judge, trial_marks, verdict_text
from app.service.views.trial_order import json_safe
from stagetree.models.studies import Exactness

SHARED = "some chains trained in a process that another chain had trained in, as a fresh one would have taken too long"


def exactness(plan: SearchPlan, study: Study) -> Exactness:
    """The verdict on a study."""
    judgement = judge(plan, study)
    text, marks = verdict_text(study, judgement), trial_marks(plan, study)
    shared = f"; {SHARED}" if text and plan.shares_processes(study) else ""
    mark = next((text for trial in study.trials if marks(trial)), "")
    return Exactness(
        verdict=judgement.verdict,
        text=json_safe(text + shared),
        mark=json_safe(_join_reasons(mark, inexact_results.study_inexactness(plan, study))),
        reason=json_safe(judgement.reason),
        unchecked=list(judgement.unchecked),
        compared=judgement.compared,
        isolated=bool(study.isolated),
        audited=study.is_audited,
        proof_steps=study.proof_steps,
    )


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """The mark of a trial that was not compared or is inexact; else ""."""
    unchecked, inexact = trial_marks(plan, study), inexact_results.trial_inexactness_in(plan, study)
    return lambda trial: json_safe(_join_reasons(unchecked(trial), inexact(trial)))


def _join_reasons(unchecked: str, inexact: Sequence[str]) -> str:
    return "; ".join(filter(None, (unchecked, *inexact)))
