"""The only place that refuses: `decide(plan, command)` gives the events that follow, and changes nothing.

Deciding twice does no harm: what is true already yields no event.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import assert_never

from app.domain import commands as c
from app.domain import events as e
from app.domain import keeping
from app.domain.asking import Trials, refusing
from app.domain.errors import Conflict, Refused, Unknown
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import ChainOutcome, FailureKind, StudyState, TrialState
from stagetree.limits import LIMITS, Limits, check_size

EXTENDABLE = (TrialState.ACTIVE, TrialState.COMPLETED)
"""A trial that may be trained longer."""

MAX_LOST = 3
"""A stage that lost its worker this often is taken to kill its worker, and fails."""


def decide(plan: SearchPlan, command: c.Command, limits: Limits = LIMITS) -> tuple[e.Event, ...]:
    """The events that follow from a command. Raises `Refused` with a sentence that says why."""
    match command:
        case c.SubmitStudy():
            return tuple(_submit(plan, command, limits))
        case c.ApplyTunerActions():
            study = _study(plan, command.study)
            return tuple(_tune(study, command.actions, Trials(plan, study, limits)))
        case c.AddTrial():
            study = _open_study(plan, command.study)
            return (Trials(plan, study, limits).add(command.hp, command.steps, {"by": "user"}),)
        case c.Ask():
            study = _open_study(plan, command.study)
            return tuple(_ask(study, command.actions, Trials(plan, study, limits)))
        case c.CancelTrial():
            return tuple(_cancel_trial(_study(plan, command.study), command.trial))
        case c.PauseStudy():
            return tuple(_pause(_open_study(plan, command.study)))
        case c.ResumeStudy():
            return tuple(_resume(_open_study(plan, command.study)))
        case c.ReopenStudy():
            return (_reopen(_study(plan, command.study), command.trials, limits),)
        case c.CancelStudy():
            return tuple(_cancel(plan, _study(plan, command.study), command.at))
        case c.CompleteStudy():
            return tuple(_complete(_study(plan, command.study), command.at))
        case c.CloseStudy():
            return tuple(_close(_study(plan, command.study), command.at))
        case c.EndStudy():
            return tuple(_end(_study(plan, command.study), command))
        case c.FailStudy():
            return tuple(_fail(_study(plan, command.study), command.error, command.at))
        case c.CheckFailures():
            return tuple(_check_failures(plan, _study(plan, command.study), command.at))
        case c.AssignChain():
            return tuple(_assign(plan, command))
        case c.LoseChain():
            return tuple(_lose(plan, command))
        case c.DeleteStudy():
            return (_delete(_study(plan, command.study), command.at),)
        case c.ReleaseCheckpoints() | c.RecordDeleted():
            return tuple(keeping.decide(plan, command))
        case _:
            assert_never(command)


def _submit(plan: SearchPlan, command: c.SubmitStudy, limits: Limits) -> Iterator[e.Event]:
    with refusing("the study"):
        check_size(command.spec, limits)
    if plan.opened is None:
        yield command.plan
    elif plan.opened != command.plan:
        raise Conflict("this plan belongs to another trainer, version, arguments or seed")
    if command.study in plan.studies:
        raise Conflict(f"there is a study {command.study} already")
    yield e.StudySubmitted(study=command.study, spec=command.spec, at=command.at)


def _tune(study: Study, actions: tuple[c.TunerAction, ...], trials: Trials) -> Iterator[e.Event]:
    if study.state != StudyState.RUNNING:
        return
    for action in actions:
        match action:
            case c.Start():
                yield trials.add(action.hp, action.steps, {"by": "tuner", **action.reason})
            case c.Extend() if _may_extend(_trial(study, action.trial), action.steps):
                yield trials.extend(action.trial, action.steps, action.reason)
            case c.Stop() if _trial(study, action.trial).state in EXTENDABLE:
                yield e.TrialStopped(study=study.id, trial=action.trial, reason=action.reason)
            case c.Prioritize() if _may_prioritize(_trial(study, action.trial), action):
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


def _ask(study: Study, actions: tuple[c.Start | c.Extend, ...], trials: Trials) -> Iterator[e.Event]:
    for action in actions:
        if isinstance(action, c.Start):
            yield trials.add(action.hp, action.steps, {"by": "user"})
        elif action.steps > trials.steps(_users_trial(study, action.trial).number):
            yield trials.extend(action.trial, action.steps, {"by": "user"})


def _users_trial(study: Study, number: int) -> Trial:
    """A trial of which its user may ask for more."""
    trial = _trial(study, number)
    if trial.reason.get("by") != "user":
        raise Conflict(f"trial {number} of study {study.id} is the tuner's, which alone says how long it is trained")
    if trial.state not in EXTENDABLE:
        raise Conflict(f"trial {number} of study {study.id} is {trial.state} and cannot be trained any longer")
    return trial


def _pause(study: Study) -> Iterator[e.Event]:
    if study.state == StudyState.RUNNING:
        yield e.StudyPaused(study=study.id)


def _resume(study: Study) -> Iterator[e.Event]:
    if study.state == StudyState.PAUSED:
        yield e.StudyResumed(study=study.id)


def _cancel(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    if study.state != StudyState.CANCELLED:
        yield e.StudyCancelled(study=_open_study(plan, study.id).id, at=at)


def _complete(study: Study, at: float) -> Iterator[e.Event]:
    if study.state == StudyState.COMPLETED:
        return
    if study.spec["tuner"]["kind"] != "external":
        raise Conflict(f"study {study.id} has a tuner of its own, which says when it is completed")
    if study.is_final or study.active:
        standing = study.state if study.is_final else f"still training ({study.active} trials)"
        raise Conflict(f"study {study.id} is {standing} and cannot be completed")
    yield from _close(study, at)


def _end(study: Study, command: c.EndStudy) -> Iterator[e.Event]:
    if study.is_running:
        yield e.StudyCompleted(study=study.id, at=command.at, reason=command.reason)


def _cancel_trial(study: Study, number: int) -> Iterator[e.Event]:
    """A trial can be removed as long as its tuner may ask for more of it."""
    trial = _trial(study, number)
    if trial.state == TrialState.ACTIVE or (trial.state == TrialState.COMPLETED and not study.is_final):
        yield e.TrialCancelled(study=trial.study, trial=trial.number)
    elif trial.state != TrialState.CANCELLED:
        standing = f"{trial.state} in a study that is {study.state}" if study.is_final else trial.state
        raise Conflict(f"trial {trial.number} of study {trial.study} is {standing} and cannot be cancelled")


GROWS_BY = {
    "random": "num_trials",
    "asha": "num_trials",
    "async_hyperband": "num_trials",
    "median": "num_trials",
    "bandit": "num_trials",
    "hyperband": "loops",
    "pbt": "populations",
}
"""The tuners that may go on, and the field that says how far: none of their decisions would have differed."""


def _reopen(study: Study, more: int, limits: Limits) -> e.StudyReopened:
    tuner = study.spec["tuner"]
    if study.state != StudyState.COMPLETED:
        raise Conflict(f"study {study.id} is {study.state}; only a completed study can be reopened")
    if (field := GROWS_BY.get(tuner["kind"])) is None:
        raise Conflict(f"a study of kind {tuner['kind']} cannot grow; those that can are {', '.join(GROWS_BY)}")
    if more <= (had := tuner.get(field, 1)):
        raise Refused(f"{field}: must be more than the {had} that the study had, got {more}")
    if more > limits.trials:
        raise Refused(f"{field}: must be at most {limits.trials:,}, got {more}")
    spec = {name: value for name, value in study.spec.items() if name != study.ending.get("by")}
    return e.StudyReopened(study=study.id, spec={**spec, "tuner": {**tuner, field: more}})


def _close(study: Study, at: float) -> Iterator[e.Event]:
    if study.is_final or study.active:
        return
    failed = [trial for trial in study.trials if trial.state == TrialState.FAILED]
    if failed and not study.answered:
        text = f"all {len(failed)} trials failed; {_last_line(failed[0])}"
        yield e.StudyFailed(study=study.id, error=text, at=at)
    else:
        yield e.StudyCompleted(study=study.id, at=at)


def _fail(study: Study, error: str, at: float) -> Iterator[e.Event]:
    if not study.is_final:
        yield e.StudyFailed(study=study.id, error=error, at=at)


def _check_failures(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """A metric that is not reported will not be for the other trials either; and a study may bear only so many."""
    if study.is_final or not study.failed:
        return
    failed = [study.trials[number] for number in study.failed]
    without_metric = next(
        (trial.error for trial in failed if (trial.error or {}).get("kind") == FailureKind.METRIC), None
    )
    if without_metric is not None and study.id in plan.unheard:
        yield e.StudyFailed(study=study.id, error=without_metric["error"], at=at)
    elif study.max_failures is not None and len(failed) > study.max_failures:
        text = f"{len(failed)} trials failed, more than max_failures: {study.max_failures}; {_last_line(failed[-1])}"
        yield e.StudyFailed(study=study.id, error=text, at=at)


def _last_line(trial: Trial) -> str:
    """What a failed trial's error ends with."""
    error = str((trial.error or {}).get("error", ""))
    return f"trial {trial.number}: {error.strip().rsplit(chr(10), 1)[-1]}"


def _assign(plan: SearchPlan, command: c.AssignChain) -> Iterator[e.Event]:
    if command.chain in plan.chains:
        return
    first = command.stages[0]
    for stage in command.stages:
        node = plan.nodes[stage.node]
        for (chain, _), (begin, end) in node.running.items():
            start = max(begin, command.progress[chain].step) if chain in command.progress else begin
            if (stage.start < end and start < stage.end) or (stage.start, stage.end) == (begin, end):
                raise Conflict(f"steps {start} to {end} of node {node.id} are being trained already")
        for step in (*node.checkpoints, *node.saving):
            if stage.start < step <= stage.end:
                raise Conflict(f"node {node.id} has been trained to step {step} already")
    if not _can_begin(plan, first):
        raise Conflict(f"there is no checkpoint of node {first.node} at step {first.start}")
    yield e.ChainAssigned(chain=command.chain, slot=command.slot, stages=command.stages, at=command.at)


def _can_begin(plan: SearchPlan, stage: e.Stage) -> bool:
    node = plan.nodes[stage.node]
    if stage.start in node.checkpoints:
        return True
    if stage.start != node.start:
        return False
    return node.parent is None or node.start in plan.nodes[node.parent].checkpoints


def _lose(plan: SearchPlan, command: c.LoseChain) -> Iterator[e.Event]:
    chain = plan.chains.get(command.chain)
    if chain is None:
        return
    if command.outcome == ChainOutcome.LOST and not chain.is_trained:
        stage = chain.stages[chain.index]
        lost = plan.nodes[stage.node].lost.get(stage.start, 0) + 1
        if lost >= MAX_LOST:
            yield e.StageFailed(
                chain=chain.id,
                index=chain.index,
                step=stage.start if stage.end > stage.start else stage.start - 1,
                kind=FailureKind.POISON,
                error=f"the worker was lost {lost} times in this stage, from step {stage.start} to {stage.end}",
                seconds=command.seconds,
            )
            return
    yield e.ChainEnded(chain=chain.id, outcome=command.outcome, steps=command.steps, seconds=command.seconds)


def _delete(study: Study, at: float) -> e.StudyDeleted:
    if not study.is_final:
        raise Conflict(f"study {study.id} is {study.state}: cancel it before it is deleted")
    return e.StudyDeleted(study=study.id, at=at)


def _study(plan: SearchPlan, study: StudyId) -> Study:
    if study not in plan.studies or plan.studies[study].deleted:
        raise Unknown(f"there is no study {study}")
    return plan.studies[study]


def _open_study(plan: SearchPlan, study: StudyId) -> Study:
    found = _study(plan, study)
    if found.is_final:
        raise Conflict(f"study {study} is {found.state} and cannot be changed any more")
    return found


def _trial(study: Study, number: int) -> Trial:
    if not 0 <= number < len(study.trials):
        raise Unknown(f"study {study.id} has no trial {number}: it has {len(study.trials)}, counted from 0")
    return study.trials[number]
