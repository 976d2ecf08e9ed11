"""What follows for a study when its trainer is not exact, and a user's wish that all of it be proven."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import events as e
from app.domain.errors import Conflict
from app.domain.proofs import judge
from app.domain.schedule import path
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import InexactPolicy, Verdict


def isolate(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """Train each trial of a running study alone from here on, or end the study; nothing where the trainer is exact."""
    judgement = judge(plan)
    if judgement.verdict != Verdict.INEXACT or study.is_final or study.isolated:
        return
    match study.inexact:
        case InexactPolicy.REFUSE:
            text = f"the trainer is not exact, and the study says inexact: refuse. {judgement.reason}"
            yield e.StudyFailed(study=study.id, error=text, at=at)
        case InexactPolicy.ALONE:
            yield e.StudyIsolated(study=study.id, reason=judgement.reason, at=at)
            users = [trial for trial in study.trials if trial.reason.get("by") == "user"]
            for number, trial in enumerate(users):
                yield from _again(study, trial, number)


def _again(study: Study, trial: Trial, number: int) -> Iterator[e.Event]:
    """What a user asked for is asked for once more; a tuner begins anew by itself."""
    last, before = f"{study.id}/{number}/alone", 0
    for asked in trial.requested_steps:
        way = path(trial.hp, asked, last, after=before)
        reason = {"by": "user"}
        if before:
            yield e.TrialExtended(study=study.id, trial=number, steps=asked, reason=reason, path=way)
        else:
            yield e.TrialAdded(study=study.id, trial=number, hp=trial.hp, steps=asked, reason=reason, path=way)
        last, before = next(reversed(way), last), asked


def request_audit(study: Study, at: float) -> Iterator[e.Event]:
    """Raises `Conflict` for a study that has nothing to compare."""
    if study.isolated:
        raise Conflict(f"each trial of study {study.id} was trained alone: there is nothing to compare")
    if study.deleted:
        raise Conflict(f"study {study.id} is deleted: its states may be gone")
    if not study.is_audited:
        yield e.AuditRequested(study=study.id, at=at)


def end_audit(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """Say that nothing is left to compare, if no comparison is under way."""
    if study.is_audited and not any(chain.proof is not None for chain in plan.chains.values()):
        yield e.AuditEnded(study=study.id, at=at)
