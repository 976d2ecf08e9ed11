"""Chooses the verifications that run before other work or on idle slots, and whether a study waits for one.

A whole trial is trained again alone, from step 0 and without a break. A suspicion requires it, and so does the end of a
study in which one trial costs little compared with the steps that sharing saved. Idle slots verify one trial of each
study, and a sample of the finished stages. An audit, which users request, trains every trial again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from app.domain.search_plan import Chain, SearchPlan, Study, Trial
from app.domain.slots import SlotDescription
from app.domain.stage_tree import Place
from app.domain.terms import TrialState, VerificationKind
from app.domain.trainer_check import check_error_on, is_checked
from app.exactness import Suspicion, depends_on_sharing, open_suspicions, resumptions_of, whole_trials
from app.exactness.verification import (
    Verification,
    has_failed_too_often,
    next_check,
    next_comparison,
    spans_of,
    verify_path,
    verify_witness,
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


MAX_CANDIDATES = 64
"""The number of a study's trials whose resumptions are counted, to choose the trial with the most."""

ENDED_EARLY = (TrialState.FAILED, TrialState.CANCELLED)

SHARE_OF_SAVINGS = 0.2
"""A study ends with a whole trial if that costs less than this share of the steps that sharing saved."""


def next_due_trial(plan: SearchPlan, device: str, slots: int = 1) -> Verification | None:
    """The whole trial that a suspicion, or a study before it ends, requires; None if there is none to train now.

    slots: the number of slots that train.
    """
    return next(filter(None, (_verify_trial(plan, trial, device) for trial in due_trials(plan, slots))), None)


def due_trials(plan: SearchPlan, slots: int = 1) -> Iterator[Trial]:
    """The trials from which `next_due_trial` chooses, including trials that are being trained again now."""
    if not plan.is_compared or has_failed_too_often(plan, VerificationKind.WHOLE) or plan.first_difference is not None:
        return
    suspicions = open_suspicions(plan)
    running = [study for study in plan.studies.values() if study.can_be_verified and study.is_running]
    if suspicions:
        yield from filter(partial(_has_ended, plan), _most_suspected(plan, running, suspicions))
    for study in running:
        if (saved := study.requested - study.unique) <= 0:
            continue
        steps = max((trial.steps for trial in study.trials if trial.path), default=0)
        if _is_near_end(study, steps, slots) and 0 < steps < SHARE_OF_SAVINGS * saved and not _is_verified(plan, study):
            yield from (_repeated_now(plan, study.trials) or _most_resumed(plan, study))[:1]


def _is_near_end(study: Study, steps: int, slots: int) -> bool:
    """Whether a whole trial of these steps should begin now, so that it ends with the study and not after it.

    It is the longest piece of the rest, which is therefore begun first. A chain's steps count as left until its stages
    end. The rest is not known while a tuner will add trials.
    """
    if not study.active:
        return True
    is_complete = len(study.trials) >= study.spec.tuner.get("num_trials", 0)
    return slots > 1 and is_complete and 0 <= study.unique - study.executed <= slots * steps


def _most_suspected(plan: SearchPlan, studies: Iterable[Study], suspicions: Iterable[Suspicion]) -> list[Trial]:
    """The longest trial that a suspicion concerns, or none. Among equals, the trial with the earliest suspicion: it
    settles the most; then the trial that is being trained again now.
    """
    trials = [trial for study in studies for trial in study.trials if trial.state not in ENDED_EARLY]
    under_way = {trial.key for trial in _repeated_now(plan, trials)}
    first = [(min((s.step for s in suspicions if s.concerns(plan, each)), default=None), each) for each in trials]
    suspected = [
        (trial.steps, -step, trial.key in under_way, -place)
        for place, (step, trial) in enumerate(first)
        if step is not None
    ]
    return [first[-place][1] for *_, place in sorted(suspected)[-1:]]


def _repeated_now(plan: SearchPlan, trials: Iterable[Trial]) -> list[Trial]:
    """The trials that are being trained again as a whole now."""
    last = [each.stages[-1] for each in plan.chains.values() if each.proof == VerificationKind.WHOLE]
    places = {(stage.node, stage.end) for stage in last}
    return [trial for trial in trials if places and trial.path and (trial.path[-1], trial.steps) in places]


def _is_verified(plan: SearchPlan, study: Study) -> bool:
    return any(trial.study == study.id for trial in whole_trials(plan))


def next_audited_trial(plan: SearchPlan, device: str) -> Verification | None:
    """The longest trial of an audited study that was not trained again yet.

    An audit trains each trial that depends on sharing again, unless it is a prefix of a longer one. Each kept state and
    each recorded metric is compared. Comparisons of resumptions are not enough, because they show only differences
    that appear within their few steps.
    """
    if has_failed_too_often(plan, VerificationKind.WHOLE):
        return None
    known = _verified_places(plan, device)
    studies = (study for study in plan.studies.values() if study.is_audited and study.can_be_verified)
    trials = (trial for study in studies for trial in study.trials if trial.path and depends_on_sharing(plan, trial))
    longest = sorted(trials, key=lambda trial: trial.steps, reverse=True)
    paths = ([place for place in _recorded_places(plan, trial) if place not in known] for trial in longest)
    return next(filter(None, (verify_path(plan, VerificationKind.WHOLE, 0, path) for path in paths if path)), None)


def _verified_places(plan: SearchPlan, device: str) -> set[Place]:
    """The places that whole trials compared, are comparing, or could not compare on this kind of device."""
    whole = (test for test in plan.tests if test.proof == VerificationKind.WHOLE)
    places = {(test.node, test.step) for test in whole if test.device == device or not test.unproven}
    chains = (chain for chain in plan.chains.values() if chain.proof == VerificationKind.WHOLE)
    for stage in (stage for chain in chains for stage in chain.stages):
        places |= {(stage.node, step) for step in range(stage.start + 1, stage.end + 1)}
    return places


def _recorded_places(plan: SearchPlan, trial: Trial) -> list[Place]:
    """The places on a trial's path, up to its last requested step, that have a kept state or recorded metrics."""
    nodes = [(plan.nodes[name], end) for name, end in plan.path_ends(next(trial.single_runs()))]
    return [(n.id, at) for n, end in nodes for at in sorted({*n.checkpoints, *n.metrics}) if 0 < at <= end]


def next_unverified_trial(plan: SearchPlan, device: str) -> Verification | None:
    """A trial of a study without a verified whole trial: its trial with the most resumptions."""
    if has_failed_too_often(plan, VerificationKind.WHOLE):
        return None
    studies = (study for study in plan.studies.values() if study.is_running and study.can_be_verified)
    trials = (_most_resumed(plan, study)[:1] for study in studies if not _is_verified(plan, study))
    return next(filter(None, (_verify_trial(plan, trial, device) for each in trials for trial in each)), None)


def _most_resumed(plan: SearchPlan, study: Study) -> list[Trial]:
    """A study's ended trials that depend on sharing, the trials with the most resumptions first."""
    over = [trial for trial in study.trials if _has_ended(plan, trial) and depends_on_sharing(plan, trial)]
    longest = sorted(over, key=lambda trial: (len(trial.requested_steps), trial.steps), reverse=True)[:MAX_CANDIDATES]
    return sorted(longest, key=lambda trial: (len(resumptions_of(plan, trial)), trial.steps), reverse=True)


def _has_ended(plan: SearchPlan, trial: Trial) -> bool:
    """Whether a trial begins at step 0 and has the result of its last requested step."""
    if not trial.path or trial.state in ENDED_EARLY or plan.start_step(trial):
        return False
    return bool(plan.metrics_by_run(trial, trial.steps))


def _verify_trial(plan: SearchPlan, trial: Trial, device: str) -> Verification | None:
    place = (trial.path[-1], trial.steps)
    if place in _verified_places(plan, device):
        return None
    return verify_path(plan, VerificationKind.WHOLE, 0, _recorded_places(plan, trial), next(trial.single_runs()))


def next_sampled_stage(plan: SearchPlan, device: str) -> Verification | None:
    """A randomly sampled stage, trained again from a state before the one that it resumed from."""
    if has_failed_too_often(plan, VerificationKind.AUDIT):
        return None
    share = max((study.spec.audit for study in plan.studies.values() if study.is_running), default=0.0)
    drawn = (witness for witness in plan.audits if witness.draw < share)
    return next(filter(None, (verify_witness(plan, VerificationKind.AUDIT, each, device) for each in drawn)), None)
