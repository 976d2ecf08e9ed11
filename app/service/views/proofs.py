"""What is proven of a study's trainer, and what stands beside the numbers of trials that are not proven."""

from __future__ import annotations

from collections.abc import Callable

from app.domain import proofs
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import Verdict
from app.service.views.writable import writable
from stagetree.models.studies import Exactness


def exactness(plan: SearchPlan, study: Study) -> Exactness:
    """The verdict on the trainer of a study, and how far it reaches."""
    judgement = proofs.judge(plan)
    mark = proofs.of_study(plan, study, judgement)
    return Exactness(
        verdict=judgement.verdict,
        proven_to=judgement.reach,
        text=writable(_text(judgement, mark, study)),
        mark=writable(mark),
        reason=writable(judgement.reason),
        stray=[writable(each) for each in judgement.stray],
        isolated=bool(study.isolated),
        audited=study.is_audited,
        proof_steps=study.proof_steps,
    )


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """What stands beside the numbers of a trial for being unproven; it is empty for a proven one."""
    judgement = proofs.judge(plan)
    return lambda trial: writable(proofs.of_trial(plan, study, trial, judgement))


def _text(judgement: proofs.Judgement, mark: str, study: Study) -> str:
    """The verdict in one line, for people."""
    if mark:
        return mark
    if judgement.verdict == Verdict.EXACT:
        return f"proven to step {judgement.reach}"
    return "nothing is shared, so there is nothing to prove" if study.trials else ""
