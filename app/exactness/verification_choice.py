"""Chooses the verifications that run before other work or on idle slots, and whether a study waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.domain.search_plan import Chain, SearchPlan, Study
from app.domain.slots import SlotDescription
from app.domain.terms import VerificationKind
from app.domain.trainer_check import check_error_on, is_checked
from app.exactness import resumptions_of
from app.exactness.verification import Verification, next_check, next_comparison, spans_of
from app.exactness.whole_trials import (
    due_trials,
    next_audited_trial,
    next_due_trial,
    next_sampled_stage,
    next_unverified_trial,
)
from app.scheduling.frontier import Frontier
from app.scheduling.gangs import verification_kinds

MOST_SLOTS = 10**6
"""More slots than exist: a whole trial that is due with any number of slots is not stopped."""


def next_urgent(frontier: Frontier, device: str, slots: int = 1) -> Verification | None:
    """The verification that precedes other work on a kind of device: the check of the trainer, a resumption, or a whole
    trial that a suspicion or the end of a study requires. slots: the number of slots that train.
    """
    if is_checked(frontier.plan, device):
        return next_comparison(frontier.plan, device) or next_due_trial(frontier.plan, device, slots)
    return next_check(frontier.plan) if frontier.most_urgent_head() is not None else None


def is_due(plan: SearchPlan, study: Study, slots: Sequence[SlotDescription]) -> bool:
    """Whether a study must wait for a verification that is running or will run."""
    return any(_is_due_on(plan, study, kind) for kind in verification_kinds(plan, study.spec.least_ranks, slots))


def _is_due_on(plan: SearchPlan, study: Study, device: str) -> bool:
    if not study.spec.check or not plan.is_compared or not any(test.device == device for test in plan.tests):
        return False
    under_way = {each.proof for each in plan.chains.values()}
    if not is_checked(plan, device):
        return VerificationKind.CHECK in under_way
    if study.isolated or plan.first_difference is not None:
        return False
    if VerificationKind.HANDOVER in under_way or next_comparison(plan, device) is not None:
        return True
    if _is_trained_for(plan, study) and _is_uncompared(plan, study):
        return True  # chains that train for the study may still save the states for it
    if VerificationKind.WHOLE in under_way and any(trial.study == study.id for trial in due_trials(plan)):
        return True
    whole = next_due_trial(plan, device)
    return whole is not None and whole.trial.study == study.id


def _is_trained_for(plan: SearchPlan, study: Study) -> bool:
    training = (chain for chain in plan.chains.values() if chain.proof is None)
    return any(stage.node in study.max_step_by_node for chain in training for stage in chain.stages)


def _is_uncompared(plan: SearchPlan, study: Study) -> bool:
    uncompared = set(plan.uncompared_resumptions)
    return bool(uncompared) and any(resumptions_of(plan, trial) & uncompared for trial in study.trials)


def can_wait(plan: SearchPlan, under_way: Chain) -> bool:
    """Whether a chain runs a verification for which no study waits, so that it may be stopped for other work.

    A verification that precedes other work is never stopped, as it would be started again at once.
    """
    if under_way.proof == VerificationKind.WHOLE:
        return all(trial.path[-1] != under_way.stages[-1].node for trial in due_trials(plan, MOST_SLOTS))
    return under_way.proof == VerificationKind.AUDIT


def is_still_needed(plan: SearchPlan, under_way: Chain) -> bool:
    """Whether the study of a verification can still be verified."""
    return plan.studies[under_way.stages[0].study].can_be_verified


def next_for_idle_slot(plan: SearchPlan, device: str) -> Verification | None:
    """The verification for a slot that has no other work."""
    under_way = {each.proof for each in plan.chains.values()} - {None}
    if not plan.is_compared or check_error_on(plan, device) or plan.first_difference is not None:
        return None
    if under_way - {VerificationKind.WHOLE}:
        return None
    if under_way:
        return next_audited_trial(plan, device)
    return (
        next_comparison(plan, device)
        or next_audited_trial(plan, device)
        or next_due_trial(plan, device)
        or next_unverified_trial(plan, device)
        or next_sampled_stage(plan, device)
    )


def is_worth_starting(frontier: Frontier, proof: Verification) -> bool:
    """Whether a verification on an idle slot will make its first comparison before its study is over.

    If no other work waits, the study is over when the chains that train now end, and the verification is stopped then.
    A verification stopped before its first comparison shows nothing, and slows down other slots of the machine.
    """
    plan = frontier.plan
    training = [chain for chain in plan.chains.values() if chain.proof is None]
    is_due = proof.kind == VerificationKind.WHOLE and proof.trial.key in {trial.key for trial in due_trials(plan)}
    is_awaited = proof.kind == VerificationKind.HANDOVER or is_due or plan.studies[proof.trial.study].is_audited
    if is_awaited or frontier.most_urgent_head() is not None or not training:
        return True
    until = min(comparison.step for comparison in proof.order.comparisons)
    spans = [replace(span, end=min(span.end, until)) for span in spans_of(proof) if span.start < until]
    seconds = sum(frontier.seconds(span) for span in spans)
    return seconds <= max(frontier.seconds_to_end(chain) for chain in training)
