"""What tuners and users ask of trials."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from app.domain import commands as c
from app.domain import events as e
from app.domain.asking import Trials
from app.domain.decide.finding import trial_of
from app.domain.decide.studies import reopened
from app.domain.errors import Refused, StateConflict
from app.domain.search_plan import Study, Trial
from app.domain.states import FailureKind, StudyState, TrialState

EXTENDABLE = (TrialState.ACTIVE, TrialState.COMPLETED)
"""A trial that may be trained longer."""


def tune(study: Study, actions: tuple[c.TunerAction, ...], trials: Trials) -> Iterator[e.Event]:
    if study.state != StudyState.RUNNING:
        return
    for action in actions:
        match action:
            case c.Start():
                yield trials.add(action.hp, action.steps, {"by": "tuner", **action.reason})
            case c.Extend() if _may_extend(trial_of(study, action.trial), action.steps):
                yield trials.extend(action.trial, action.steps, action.reason)
            case c.Stop() if trial_of(study, action.trial).state in EXTENDABLE:
                yield e.TrialStopped(study=study.id, trial=action.trial, reason=action.reason)
            case c.Prioritize() if _may_prioritize(trial_of(study, action.trial), action):
                yield e.TrialPrioritized(
                    study=study.id, trial=action.trial, priority=action.priority, reason=action.reason
                )


def _may_extend(trial: Trial, steps: int) -> bool:
    return trial.state in EXTENDABLE and steps > trial.steps


def _may_prioritize(trial: Trial, action: c.Prioritize) -> bool:
    """Whether that is news: a priority that stays what it is may have another reason."""
    if not isfinite(action.priority):
        raise Refused(f"priority: must be a finite number, got {action.priority} for trial {trial.number}")
    before = (trial.priority, dict(trial.standing))
    return trial.state in EXTENDABLE and before != (action.priority, dict(action.reason))


def ask(study: Study, actions: tuple[c.Start | c.Extend, ...], trials: Trials) -> Iterator[e.Event]:
    for action in actions:
        if isinstance(action, c.Start):
            yield trials.add(action.hp, action.steps, {"by": "user"})
        elif action.steps > trials.steps(_users_trial(study, action.trial).number):
            yield trials.extend(action.trial, action.steps, {"by": "user"})


def _users_trial(study: Study, number: int) -> Trial:
    """A trial of which its user may ask for more."""
    trial = trial_of(study, number)
    if trial.reason.get("by") != "user":
        raise StateConflict(
            f"trial {number} of study {study.id} is the tuner's, which alone says how long it is trained"
        )
    if trial.state not in EXTENDABLE:
        raise StateConflict(f"trial {number} of study {study.id} is {trial.state} and cannot be trained any longer")
    return trial


def retry(study: Study, command: c.RetryTrial) -> Iterator[e.Event]:
    """A failed trial is tried again, unless what it failed by is on record and would be so again."""
    trial, name = trial_of(study, command.trial), f"trial {command.trial} of study {study.id}"
    kind = (trial.error or {}).get("kind")
    if trial.state != TrialState.FAILED:
        raise StateConflict(f"{name} is {trial.state}; only a failed trial can be tried again")
    if study.state == StudyState.CANCELLED:
        raise StateConflict(f"study {study.id} was cancelled: nothing of it is tried again")
    if kind in (FailureKind.NAN, FailureKind.METRIC):
        text = "what it was measured at is on record, and would be no other; ask for a trial with other values"
        raise StateConflict(f"{name} cannot be tried again: {text}")
    if study.is_final:
        yield reopened(study, study.tuner, command.at)
    yield e.TrialRetried(study=study.id, trial=trial.number)


def cancel(study: Study, number: int) -> Iterator[e.Event]:
    """A trial can be removed as long as its tuner may ask for more of it."""
    trial = trial_of(study, number)
    if trial.state == TrialState.ACTIVE or (trial.state == TrialState.COMPLETED and not study.is_final):
        yield e.TrialCancelled(study=trial.study, trial=trial.number)
    elif trial.state != TrialState.CANCELLED:
        standing = f"{trial.state} in a study that is {study.state}" if study.is_final else trial.state
        raise StateConflict(f"trial {trial.number} of study {trial.study} is {standing} and cannot be cancelled")
