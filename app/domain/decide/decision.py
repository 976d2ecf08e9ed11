"""The decision on each command. `studies` and `averages` have those about their subjects."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import assert_never

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import steps_left
from app.domain.decide import averages, studies
from app.domain.decide.studies import reopen_event, reopen_if_ended
from app.domain.pricing import Price
from app.domain.search_plan import SearchPlan, Study, Trial, get_open_study, get_study, get_trial
from app.domain.terms import FailureKind, NodeId, Refused, StateConflict, StudyState, TrialState
from app.domain.trial_requests import TrialRequests, branch_hp, suggestion_events, withdraw
from stagetree.limits import LIMITS, Limits

EXTENDABLE = (TrialState.ACTIVE, TrialState.COMPLETED)
"""The states in which a trial may be extended."""


def tune(
    plan: SearchPlan, study: Study, actions: tuple[c.TunerAction, ...], trials: TrialRequests
) -> Iterator[e.Event]:
    if study.state != StudyState.RUNNING:
        return
    for action in actions:
        match action:
            case c.Start() if action.average_of:
                yield from averages.average_of_run(plan, study, action, trials)
            case c.Start():
                yield trials.add(action.hp, action.steps, {"by": "tuner", **action.reason})
            case c.Extend():
                trial = get_trial(study, action.trial)
                if trial.state in EXTENDABLE and action.steps > trial.steps:
                    yield trials.extend(action.trial, action.steps, action.reason)
            case c.Stop() if get_trial(study, action.trial).state in EXTENDABLE:
                yield e.TrialStopped(study=study.id, trial=action.trial, reason=action.reason)
            case c.Prioritize() if _may_prioritize(get_trial(study, action.trial), action):
                yield e.TrialPrioritized(
                    study=study.id, trial=action.trial, priority=action.priority, reason=action.reason
                )


def _may_prioritize(trial: Trial, action: c.Prioritize) -> bool:
    """Whether the priority or its reason changes. Raises `Refused` if the priority is not finite."""
    if not isfinite(action.priority):
        raise Refused(f"priority: must be a finite number, got {action.priority} for trial {trial.number}")
    before = (trial.priority, dict(trial.priority_reason))
    return trial.state in EXTENDABLE and before != (action.priority, dict(action.reason))


def ask(study: Study, actions: tuple[c.Start | c.Extend, ...], trials: TrialRequests) -> Iterator[e.Event]:
    for action in actions:
        if isinstance(action, c.Start):
            yield trials.add(action.hp, action.steps, {"by": "user"})
        elif action.steps > trials.steps(_users_trial(study, action.trial).number):
            yield trials.extend(action.trial, action.steps, {"by": "user"})


def _users_trial(study: Study, number: int) -> Trial:
    """A trial that its user may extend. Raises `StateConflict` for others."""
    trial = get_trial(study, number)
    if trial.reason.get("by") != "user":
        raise StateConflict(
            f"trial {number} of study {study.id} belongs to the tuner, which alone decides how long it is trained"
        )
    if trial.state not in EXTENDABLE:
        raise StateConflict(f"trial {number} of study {study.id} is {trial.state} and cannot be trained any longer")
    return trial


def branch(plan: SearchPlan, study: Study, command: c.BranchTrial, trials: TrialRequests) -> Iterator[e.Event]:
    """Add a trial that shares the first steps of another one."""
    original = get_trial(study, command.trial)
    hp = branch_hp(original, command.at, command.hp, command.steps)
    nodes = averages.branch_path(plan, original, command.at, hp, command.steps)
    yield from reopen_if_ended(study, command.time)
    reason = {"by": "user", "branch_of": command.trial, "at": command.at}
    yield trials.add(hp, command.steps, reason, None if nodes is None else [nodes])


def price_of(plan: SearchPlan, command: c.AddTrial | c.BranchTrial | c.AverageTrials, limits: Limits) -> Price:
    """The steps that a trial would cost now. Raises `Refused` as `decide` does."""
    path, others, steps, average = dict[NodeId, int](), list[dict[NodeId, int]](), 0, None
    for event in decide(plan, command, limits):
        match event:
            case e.AverageNamed():
                average = event
            case e.TrialAdded() | e.TrialExtended():
                path, others, steps = {**path, **event.path}, event.repeats, event.steps
    shares = average.shares if average is not None else ()
    return averages.price_of(plan, plan.studies[command.study], [path, *others], steps, shares)


def retry(study: Study, command: c.RetryTrial) -> Iterator[e.Event]:
    """Retry a failed trial, unless a recorded metric caused the failure: it would be the same again."""
    trial, name = get_trial(study, command.trial), f"trial {command.trial} of study {study.id}"
    kind = (trial.error or {}).get("kind")
    if trial.state != TrialState.FAILED:
        raise StateConflict(f"{name} is {trial.state}; only a failed trial can be tried again")
    if study.state == StudyState.CANCELLED:
        raise StateConflict(f"study {study.id} was cancelled: none of its trials is tried again")
    if kind in (FailureKind.NAN, FailureKind.METRIC):
        text = "its metrics are on record, and would be the same again; ask for a trial with other values"
        raise StateConflict(f"{name} cannot be tried again: {text}")
    if study.is_final:
        yield reopen_event(study, study.spec.tuner, command.at)
    yield e.TrialRetried(study=study.id, trial=trial.number)


def cancel(study: Study, number: int) -> Iterator[e.Event]:
    """Cancel a trial that its tuner may still extend. Raises `StateConflict` for others."""
    trial = get_trial(study, number)
    if trial.state == TrialState.ACTIVE or (trial.state == TrialState.COMPLETED and not study.is_final):
        yield e.TrialCancelled(study=trial.study, trial=trial.number)
    elif trial.state != TrialState.CANCELLED:
        standing = f"{trial.state} in a study that is {study.state}" if study.is_final else trial.state
        raise StateConflict(f"trial {trial.number} of study {trial.study} is {standing} and cannot be cancelled")


def choose_packing(plan: SearchPlan, command: c.ChoosePacking) -> Iterator[e.Event]:
    if plan.packing is not None:
        return
    if command.profile is not None:
        yield command.profile
    yield e.PackingChosen(width=command.width, reason=command.reason)


def assign(plan: SearchPlan, command: c.AssignChain) -> Iterator[e.Event]:
    if command.chain in plan.chains:
        return
    if command.proof is None:
        _check_new(plan, command)
    elif any(chain.proof == command.proof and chain.slot == command.slot for chain in plan.chains.values()):
        raise StateConflict(f"slot {command.slot} makes a {command.proof} of the plan already")
    yield e.ChainAssigned(
        chain=command.chain,
        slot=command.slot,
        stages=command.stages,
        at=command.at,
        proof=command.proof,
        members=command.members,
        kind=command.kind,
    )


def _check_new(plan: SearchPlan, command: c.AssignChain) -> None:
    """Raises `StateConflict` if the steps are trained already, their start state is missing, or no budget is left."""
    first = command.stages[0]
    for stage in command.stages:
        node = plan.nodes[stage.node]
        for (chain, _), (begin, end) in node.running.items():
            start = max(begin, command.progress[chain].step) if chain in command.progress else begin
            if (stage.start < end and start < stage.end) or (stage.start, stage.end) == (begin, end):
                raise StateConflict(f"steps {start} to {end} of node {node.id} are being trained already")
        for step in (*node.resumable, *node.saving):
            if stage.start < step <= stage.end:
                raise StateConflict(f"node {node.id} has been trained to step {step} already")
    if not plan.can_begin(plan.nodes[first.node], first.start):
        raise StateConflict(f"there is no checkpoint of node {first.node} at step {first.start}")
    for study in {stage.study for stage in command.stages}:
        steps = sum(stage.end - stage.start for stage in command.stages if stage.study == study)
        if steps > (left := steps_left(plan, plan.studies[study])):
            raise StateConflict(f"study {study} has {left:,.0f} steps left of its max_total_steps, and not {steps:,}")


def lose(plan: SearchPlan, command: c.LoseChain) -> Iterator[e.Event]:
    chain = plan.chains.get(command.chain)
    if chain is None:
        return
    is_suspect = command.died_alone and not chain.is_trained and chain.proof is None
    if is_suspect and plan.is_suspect((stage := chain.stages[chain.index]).node, stage.start):
        times = plan.nodes[stage.node].lost[stage.start] + 1
        yield e.StageFailed(
            chain=chain.id,
            index=chain.index,
            step=stage.start if stage.end > stage.start else stage.start - 1,
            kind=FailureKind.POISON,
            error=f"the process that trained this stage, from step {stage.start} to {stage.end}, died {times} times,"
            " the last time with no other stage beside it",
            seconds=command.seconds,
        )
        return
    yield e.ChainEnded(
        chain=chain.id,
        outcome=command.outcome,
        steps=command.steps,
        seconds=command.seconds,
        died_alone=is_suspect,
    )


def decide(plan: SearchPlan, command: c.Command, limits: Limits = LIMITS) -> tuple[e.Event, ...]:
    """The events that follow from a command. Raises `Refused` with the reason in a sentence."""
    match command:
        case _ if isinstance(command, c.TrialCommand):
            return tuple(_decide_trial_command(plan, command, limits))
        case c.ChoosePacking():
            return tuple(choose_packing(plan, command))
        case c.AssignChain():
            return tuple(assign(plan, command))
        case c.LoseChain():
            return tuple(lose(plan, command))
        case c.ReleaseCheckpoints() | c.RecordDeleted():
            return tuple(checkpoint_needs.decide(plan, command))
        case c.SubmitStudy():
            return tuple(studies.submit(plan, command, limits))
        case _:
            return tuple(_decide_study_command(plan, command, limits))


def _decide_trial_command(plan: SearchPlan, command: c.TrialCommand, limits: Limits) -> Iterator[e.Event]:
    match command:
        case c.ApplyTunerActions():
            study = get_study(plan, command.study)
            return tune(plan, study, command.actions, TrialRequests(plan, study, limits))
        case c.AddTrial():
            study = get_open_study(plan, command.study)
            return iter([TrialRequests(plan, study, limits).add(command.hp, command.steps, {"by": "user"})])
        case c.AskForTrials():
            study = get_open_study(plan, command.study)
            return ask(study, command.actions, TrialRequests(plan, study, limits))
        case c.SuggestConfigurations():
            study = get_open_study(plan, command.study)
            return suggestion_events(study.id, command.configurations, command.at, command.by)
        case c.WithdrawSuggestion():
            return withdraw(get_study(plan, command.study), command)
        case c.CancelTrial():
            return cancel(get_study(plan, command.study), command.trial)
        case c.RetryTrial():
            return retry(get_study(plan, command.study), command)
        case c.BranchTrial():
            study = get_study(plan, command.study)
            return branch(plan, study, command, TrialRequests(plan, study, limits))
        case c.AverageTrials():
            study = get_study(plan, command.study)
            return averages.average(plan, command, TrialRequests(plan, study, limits))
        case _:
            assert_never(command)


def _decide_study_command(plan: SearchPlan, command: c.StudyCommand, limits: Limits) -> Iterator[e.Event]:
    study = get_study(plan, command.study)
    match command:
        case c.PauseStudy():
            return studies.pause(get_open_study(plan, study.id))
        case c.ResumeStudy():
            return studies.resume(get_open_study(plan, study.id))
        case c.ReopenStudy():
            return studies.reopen(study, command.trials, command.at, limits)
        case c.CancelStudy():
            return studies.cancel(study, command.at)
        case c.CompleteStudy():
            return studies.complete(study, command.at)
        case c.CloseStudy():
            return studies.close(study, command.at)
        case c.EndStudy():
            return studies.end(plan, study, command)
        case c.FailStudy():
            return studies.fail(study, command.error, command.at)
        case c.CheckFailures():
            return studies.check_failures(plan, study, command.at)
        case c.IsolateStudy():
            return studies.isolate(plan, study, command.at)
        case c.RequestAudit():
            return studies.request_audit(study, command.at)
        case c.EndAudit():
            return studies.end_audit(plan, study, command.at)
        case c.DeleteStudy():
            return studies.delete(study, command.at)
        case c.AddNote():
            return studies.add_note(study, command)
        case c.CorrectNote():
            return studies.correct_note(study, command)
        case c.LabelStudy():
            return studies.label(study, command)
        case _:
            assert_never(command)
