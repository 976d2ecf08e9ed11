"""Events of studies, from submission to end, and of the environment in which their trials are trained."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from app.domain import events as e
from app.domain import outstanding_requests, targets
from app.domain.artifacts import Annotation
from app.domain.inputs import fingerprint, is_unseen
from app.domain.sampler_inputs import ResultsLearned, SamplerInput, SuggestionWithdrawn
from app.domain.search_plan import Checkpoint, Note, SearchPlan, StoredSpec, Study
from app.domain.terms import StudyId, StudyState, TrialState, VerificationKind
from app.domain.trainer_check import failed_check

StudyEvent = (
    e.StudySubmitted
    | e.StudyPaused
    | e.StudyResumed
    | e.StudyReopened
    | e.StudyCompleted
    | e.StudyFailed
    | e.StudyCancelled
    | e.StudyStruck
    | e.StudyDeleted
    | e.StudyIsolated
    | e.AuditRequested
    | e.AuditEnded
    | Annotation
    | SamplerInput
)


def record(plan: SearchPlan, event: StudyEvent) -> None:
    if isinstance(event, Annotation | SamplerInput):
        _annotate(plan, plan.studies[event.study], event)
        return
    match event:
        case e.StudySubmitted():
            _submit(plan, event)
        case e.StudyPaused():
            _set_state(plan, event.study, StudyState.PAUSED)
        case e.StudyResumed():
            _set_state(plan, event.study, StudyState.RUNNING)
        case e.StudyReopened():
            _set_state(plan, event.study, StudyState.RUNNING)
            _reopen(plan, plan.studies[event.study], event)
        case e.StudyCompleted():
            _finish(plan, event.study, StudyState.COMPLETED, event.at)
            plan.studies[event.study].ending = event.reason
        case e.StudyFailed():
            plan.studies[event.study].failed_check = failed_check(plan, plan.studies[event.study])
            _finish(plan, event.study, StudyState.FAILED, event.at, event.error)
        case e.StudyCancelled():
            _finish(plan, event.study, StudyState.CANCELLED, event.at)
        case e.StudyStruck():
            _finish(plan, event.study, StudyState.FAILED, event.at, f"struck by an operator: {event.reason}")
        case e.StudyDeleted():
            plan.studies[event.study].deleted = True
        case e.StudyIsolated():
            _isolate(plan, plan.studies[event.study], event.reason)
        case e.AuditRequested():
            plan.studies[event.study].is_audited = True
            plan.failed_verifications.pop(VerificationKind.WHOLE, None)  # a new request resets the failures
        case e.AuditEnded():
            plan.studies[event.study].is_audited = False
        case _:
            assert_never(event)


def _annotate(plan: SearchPlan, study: Study, event: Annotation | SamplerInput) -> None:
    match event:
        case e.ConfigurationSuggested():
            study.suggestions.append(event)
        case SuggestionWithdrawn():
            study.withdrawn[event.suggestion] = event.at
        case ResultsLearned():
            study.learned.append(event)
        case e.NoteAdded():
            study.notes.append(Note(plan.version + 1, event.at, event.trial, event.text, event.by))
        case e.NoteCorrected():
            study.notes[event.note] = replace(study.notes[event.note], text=event.text, corrected_at=event.at)
        case e.StudyLabelled():
            study.tags = event.tags
            changed = study.attributes | event.attributes
            study.attributes = {name: value for name, value in changed.items() if value is not None}


def _submit(plan: SearchPlan, event: e.StudySubmitted) -> None:
    begin, version = event.begin, plan.version + 1
    study = Study(event.study, StoredSpec.from_json(event.spec), event.at, version, begin=begin, inputs=event.inputs)
    study.project, study.owner, study.other_files = event.project, event.by, event.other_files
    plan.studies[event.study], plan.metric_unseen[event.study] = study, None
    targets.await_target(plan, study)
    plan.check_failures = {}  # the error may be fixed, so each study checks again
    if begin is not None and begin["key"] not in plan.weights:
        plan.weights[begin["key"]] = Checkpoint(begin["key"], begin["sha256"], begin["size"])
        plan.kept_bytes += begin["size"]


def _set_state(plan: SearchPlan, study: StudyId, state: StudyState) -> None:
    """Set the state, and mark the study's nodes as touched because their outstanding work may change."""
    plan.studies[study].state = state
    plan.touched.update(plan.studies[study].max_step_by_node)


def _reopen(plan: SearchPlan, study: Study, event: e.StudyReopened) -> None:
    """Clear the study's end. The time until the reopening does not count as its time."""
    if study.finished_at is not None:
        study.idle_seconds += max(0.0, event.at - study.finished_at)
    study.spec, study.finished_at, study.ending, study.error = StoredSpec.from_json(event.spec), None, {}, None
    targets.await_target(plan, study)


def _isolate(plan: SearchPlan, study: Study, reason: str) -> None:
    """Reset the trials of the study. It remains charged for the steps that were run."""
    for trial in study.trials:
        for step in sorted({*trial.requested_steps, *trial.unevaluated}):
            outstanding_requests.stop_waiting(plan, trial, step)
    plan.touched.update(study.max_step_by_node)
    study.isolated = reason
    study.spec = StoredSpec.from_json(dict(study.spec.json))  # another object: its tuner begins anew
    study.trials, study.history, study.failed, study.max_step_by_node = [], [], [], {}
    study.unmerged = {}
    study.active = study.num_results = study.requested = study.unique = 0
    study.first, study.retried, study.lost, study.struck = 0, 0, 0, study.executed
    plan.metric_unseen[study.id] = None
    targets.await_target(plan, study)


def _finish(plan: SearchPlan, study: StudyId, state: StudyState, at: float, error: str | None = None) -> None:
    """End the study, and cancel its active trials."""
    for trial in plan.studies[study].trials:
        for step in sorted(trial.unevaluated):
            outstanding_requests.drop_evaluation(plan, trial, step)
        if trial.state == TrialState.ACTIVE:
            outstanding_requests.end_trial(plan, trial, TrialState.CANCELLED)
    _set_state(plan, study, state)
    plan.studies[study].finished_at = at
    if error is not None:
        plan.studies[study].error = error
    plan.metric_unseen.pop(study, None)
    plan.awaiting_target.pop(study, None)


EnvironmentEvent = (
    e.PackingProfiled
    | e.PackingChosen
    | e.RanksProfiled
    | e.NeedsMore
    | e.InputsSeen
    | e.EnvironmentSeen
    | e.WeightsDropped
)


def record_environment(plan: SearchPlan, event: EnvironmentEvent) -> None:
    match event:
        case e.PackingProfiled():
            plan.profiles[event.device] = event
        case e.PackingChosen():
            plan.packing, plan.packing_reason = event.width, event.reason
        case e.RanksProfiled():
            plan.ranks_profiles[event.kind] = event
        case e.NeedsMore():
            plan.needs.setdefault(event.kind, []).append(event)
        case e.InputsSeen():
            _record_inputs(plan, event)
        case e.EnvironmentSeen():
            plan.environments.setdefault(event.device, event)
        case e.WeightsDropped():
            if (weights := plan.weights.pop(event.key, None)) is not None:
                plan.kept_bytes -= weights.size
        case _:
            assert_never(event)


def _record_inputs(plan: SearchPlan, event: e.InputsSeen) -> None:
    """Record each input that the server does not see as the first slot saw it, and any that differ on later slots."""
    study = plan.studies[event.study]
    for before, now in zip(study.inputs, event.inputs, strict=True):
        is_seen = not is_unseen(before) and not is_unseen(now)
        if is_seen and fingerprint(before) != fingerprint(now) and now["path"] not in study.other_inputs:
            study.other_inputs.append(now["path"])
    pairs = zip(study.inputs, event.inputs, strict=True)
    study.inputs = [now if is_unseen(before) else before for before, now in pairs]
