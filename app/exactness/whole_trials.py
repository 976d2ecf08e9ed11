"""Which trials are trained again as a whole: alone, from step 0 and without a break.

A suspicion asks for that, and so does the end of a study where one trial costs little beside what sharing saved. Slots
with nothing else to do verify one trial of each study, and a share of the finished stages. An audit that a user asks
for trains every trial again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.stage_tree import Place
from app.domain.terms import TrialState, VerificationKind
from app.exactness import Suspicion, open_suspicions, rests_on_sharing, resumptions_of, whole_trials
from app.exactness.verification import Verification, has_failed_too_often, trained_again, verify_path

MOST_LOOKED_AT = 64
"""So many of a study's trials are looked at for the one with the most resumptions."""

ENDED_EARLY = (TrialState.FAILED, TrialState.CANCELLED)

SHARE_OF_SAVINGS = 0.2
"""A study ends with a whole trial where that costs less than this share of the steps that sharing saved."""


def next_due_trial(plan: SearchPlan, device: str, slots: int = 1) -> Verification | None:
    """The whole trial that a suspicion asks for, or a study before it ends; None while there is none to train.

    slots: so many train; where the rest of a study takes the others no longer than the whole trial, it begins.
    """
    return next(filter(None, (_verify_trial(plan, trial, device) for trial in due_trials(plan, slots))), None)


def due_trials(plan: SearchPlan, slots: int = 1) -> Iterator[Trial]:
    """The trials of which `next_due_trial` is one; also those that are being trained again now."""
    if not plan.is_compared or has_failed_too_often(plan, VerificationKind.WHOLE) or plan.first_difference is not None:
        return
    suspicions = open_suspicions(plan)
    running = [study for study in plan.studies.values() if study.can_be_verified and study.is_running]
    if suspicions:
        yield from filter(partial(_is_over, plan), _most_suspected(plan, running, suspicions))
    for study in running:
        steps, saved = max((trial.steps for trial in study.trials if trial.path), default=0), _steps_shared(study)
        is_near_end = not study.active or 0 <= study.unique - study.executed <= (slots - 1) * steps
        if is_near_end and 0 < steps < SHARE_OF_SAVINGS * saved and not _is_verified(plan, study):
            yield from _most_resumed(plan, study)[:1]


def _most_suspected(plan: SearchPlan, studies: Iterable[Study], suspicions: Iterable[Suspicion]) -> list[Trial]:
    """The longest trial that a suspicion concerns, of these the one with the most steps behind it: it settles most."""
    trials = [trial for study in studies for trial in study.trials if trial.state not in ENDED_EARLY]
    first = [(min((s.step for s in suspicions if s.concerns(plan, each)), default=None), each) for each in trials]
    suspected = [(trial.steps, -step, -place) for place, (step, trial) in enumerate(first) if step is not None]
    return [first[-place][1] for *_, place in sorted(suspected)[-1:]]


def _steps_shared(study: Study) -> int:
    """The steps that its trials need not train, since they share them."""
    return study.requested - study.unique


def _is_verified(plan: SearchPlan, study: Study) -> bool:
    return any(trial.study == study.id for trial in whole_trials(plan))


def next_audited_trial(plan: SearchPlan, device: str) -> Verification | None:
    """Of a study all of which its user wants compared, the longest trial that was not trained again yet.

    Each trial that rests on sharing is trained again, but for those that end on the way of a longer one. Less would not
    do: a comparison that begins with a saved state sees only what shows on its own few steps. Each state that is kept
    and each metric on record is compared.
    """
    if has_failed_too_often(plan, VerificationKind.WHOLE):
        return None
    known = _known_alone(plan, device)
    studies = (study for study in plan.studies.values() if study.is_audited and study.can_be_verified)
    trials = (trial for study in studies for trial in study.trials if trial.path and rests_on_sharing(plan, trial))
    longest = sorted(trials, key=lambda trial: trial.steps, reverse=True)
    ways = ([place for place in _recorded_places(plan, trial) if place not in known] for trial in longest)
    return next(filter(None, (verify_path(plan, VerificationKind.WHOLE, 0, way) for way in ways if way)), None)


def _known_alone(plan: SearchPlan, device: str) -> set[Place]:
    """Where it is known, or soon will be, what a trial alone comes to; or that it cannot be told on this device."""
    whole = (test for test in plan.tests if test.proof == VerificationKind.WHOLE)
    places = {(test.node, test.step) for test in whole if test.device == device or not test.unproven}
    for stage in (
        stage for each in plan.chains.values() if each.proof == VerificationKind.WHOLE for stage in each.stages
    ):
        places |= {(stage.node, step) for step in range(stage.start + 1, stage.end + 1)}
    return places


def _recorded_places(plan: SearchPlan, trial: Trial) -> list[Place]:
    """Where a state is kept, or metrics are on record, on a trial's way to the last step that it was asked for."""
    nodes = [(plan.nodes[name], end) for name, end in plan.path_ends(next(trial.single_runs()))]
    return [(n.id, at) for n, end in nodes for at in sorted({*n.checkpoints, *n.metrics}) if 0 < at <= end]


def next_unverified_trial(plan: SearchPlan, device: str) -> Verification | None:
    """One whole trial of each study: the one with the most resumptions."""
    if has_failed_too_often(plan, VerificationKind.WHOLE):
        return None
    studies = (study for study in plan.studies.values() if study.is_running and study.can_be_verified)
    trials = (_most_resumed(plan, study)[:1] for study in studies if not _is_verified(plan, study))
    return next(filter(None, (_verify_trial(plan, trial, device) for each in trials for trial in each)), None)


def _most_resumed(plan: SearchPlan, study: Study) -> list[Trial]:
    """A study's trials that rest on sharing and have come to their end, those with the most resumptions first."""
    over = [trial for trial in study.trials if _is_over(plan, trial) and rests_on_sharing(plan, trial)]
    longest = sorted(over, key=lambda trial: (len(trial.requested_steps), trial.steps), reverse=True)[:MOST_LOOKED_AT]
    return sorted(longest, key=lambda trial: (len(resumptions_of(plan, trial)), trial.steps), reverse=True)


def _is_over(plan: SearchPlan, trial: Trial) -> bool:
    """Whether a trial that begins at step 0 has the result of the last step that it was asked for."""
    if not trial.path or trial.state in ENDED_EARLY or plan.start_step(trial):
        return False
    return bool(plan.metrics_by_run(trial, trial.steps))


def _verify_trial(plan: SearchPlan, trial: Trial, device: str) -> Verification | None:
    place = (trial.path[-1], trial.steps)
    if place in _known_alone(plan, device):
        return None
    return verify_path(plan, VerificationKind.WHOLE, 0, _recorded_places(plan, trial), next(trial.single_runs()))


def next_sampled_stage(plan: SearchPlan, device: str) -> Verification | None:
    """A stage that was drawn, from before the state that it began with."""
    if has_failed_too_often(plan, VerificationKind.AUDIT):
        return None
    share = max((study.audit for study in plan.studies.values() if study.is_running), default=0.0)
    drawn = (witness for witness in plan.audits if witness.draw < share)
    return next(filter(None, (trained_again(plan, VerificationKind.AUDIT, each, device) for each in drawn)), None)
