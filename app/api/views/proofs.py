"""What is proven of a study's trainer, and what stands beside the numbers of trials that are not proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.api.views.writable import writable
from app.domain import proofs
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import Verdict

Json = dict[str, Any]


def exactness(plan: SearchPlan, study: Study) -> Json:
    """The verdict on the trainer of a study, and how far it reaches."""
    judgement = proofs.judge(plan)
    mark = proofs.of_study(plan, study, judgement)
    return {
        "verdict": judgement.verdict,
        "proven_to": judgement.reach,
        "text": writable(_text(judgement, mark, study)),
        "mark": writable(mark),
        "reason": writable(judgement.reason),
        "stray": [writable(each) for each in judgement.stray],
        "isolated": bool(study.isolated),
        "proof_steps": study.proof_steps,
    }


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], Json]:
    """What is shown of a trial for being unproven: its field `exactness`, which a proven trial has not."""
    judgement = proofs.judge(plan)

    def mark(trial: Trial) -> Json:
        text = proofs.of_trial(plan, study, trial, judgement)
        return {"exactness": writable(text)} if text else {}

    return mark


def _text(judgement: proofs.Judgement, mark: str, study: Study) -> str:
    """The verdict in one line, for people."""
    if mark:
        return mark
    if judgement.verdict == Verdict.EXACT:
        return f"proven to step {judgement.reach}"
    return "nothing is shared, so there is nothing to prove" if study.trials else ""
