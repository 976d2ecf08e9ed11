"""What is proven of a study's trainer, and the marks beside numbers that are unproven or known not to be exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain import proofs, results
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import Verdict
from app.service.views.ordering import json_safe
from stagetree.models.studies import Exactness


def exactness(plan: SearchPlan, study: Study) -> Exactness:
    """The verdict on the trainer of a study, and how far it reaches."""
    judgement = proofs.judge(plan)
    unproven = proofs.of_study(plan, study, judgement)
    return Exactness(
        verdict=judgement.verdict,
        proven_to=judgement.reach,
        text=json_safe(_text(judgement, unproven, study)),
        mark=json_safe(_joined(unproven, results.inexact_in_study(plan, study))),
        reason=json_safe(judgement.reason),
        stray=[json_safe(each) for each in judgement.stray],
        isolated=bool(study.isolated),
        audited=study.is_audited,
        proof_steps=study.proof_steps,
    )


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """The words beside the numbers of a trial that is unproven or known not to be exact; none for a proven one."""
    judgement, inexact = proofs.judge(plan), results.inexact_in_trials(plan, study)
    return lambda trial: json_safe(_joined(proofs.of_trial(plan, study, trial, judgement), inexact(trial)))


def _joined(unproven: str, inexact: Sequence[str]) -> str:
    return "; ".join(filter(None, (unproven, *inexact)))


def _text(judgement: proofs.Judgement, unproven: str, study: Study) -> str:
    """The verdict in one line, for people."""
    if unproven:
        return unproven
    if judgement.verdict == Verdict.EXACT:
        return f"proven to step {judgement.reach}"
    return "nothing is shared, so there is nothing to prove" if study.trials else ""
