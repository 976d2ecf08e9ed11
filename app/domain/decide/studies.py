"""How studies begin, go on, and end, and what follows when their trainer is not exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import BUDGETS, spent
from app.domain.failures import last_line
from app.domain.schedule import path
from app.domain.search_plan import SearchPlan, Study, Trial, require_open
from app.domain.terms import FailureKind, InexactPolicy, Refused, StateConflict, StudyState, TrialState
from app.domain.trainer_check import check_error
from app.domain.trial_requests import refuse_sequence_errors, suggestion_events
from stagetree.limits import DATA_SEED, Limits, check_size


def isolate(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """Train each trial of a running study alone from here on, or end the study; nothing where the trainer is exact."""
    test = plan.first_difference
    if test is None or study.is_final or study.isolated:
        return
    match study.inexact:
        case InexactPolicy.REFUSE:
            text = f"the trainer is not exact, and the study says inexact: refuse. {test.difference}"
            yield e.StudyFailed(study=study.id, error=text, at=at)
        case InexactPolicy.ALONE:
            yield e.StudyIsolated(study=study.id, reason=test.difference, at=at)
            theirs = (
                trial for trial in study.trials if trial.reason.get("by") == "user" and not plan.start_step(trial)
            )
            users = [trial for trial in theirs if trial.state != TrialState.CANCELLED]
            for number, trial in enumerate(users):
                yield from _restart_trial(study, trial, number)


def _restart_trial(study: Study, trial: Trial, number: int) -> Iterator[e.Event]:
    """What a user asked for is asked for once more, but averages; a tuner begins anew by itself."""
    seeds = [run.hp[DATA_SEED] for run in trial.runs] if len(trial.runs) > 1 else []
    lasts, before = [study.root_alone(number, run) for run in range(len(trial.runs))], 0
    for steps in trial.requested_steps:
        ways = [path(run.hp, steps, last, after=before) for run, last in zip(trial.runs, lasts, strict=True)]
        asked: dict[str, Any] = {"study": study.id, "trial": number, "steps": steps, "reason": {"by": "user"}}
        asked |= {"path": ways[0], "repeats": ways[1:]}
        yield e.TrialExtended(**asked) if before else e.TrialAdded(**asked, hp=trial.hp, data_seeds=seeds)
        lasts, before = [next(reversed(way), last) for way, last in zip(ways, lasts, strict=True)], steps


def request_audit(study: Study, at: float) -> Iterator[e.Event]:
    """Raises `StateConflict` for a study that has nothing to compare."""
    if study.isolated:
        raise StateConflict(f"each trial of study {study.id} was trained alone: there is nothing to compare")
    if study.deleted:
        raise StateConflict(f"study {study.id} is deleted: its states may be gone")
    if not study.is_audited:
        yield e.AuditRequested(study=study.id, at=at)


def end_audit(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """Say that nothing is left to compare, if no comparison is under way."""
    if study.is_audited and not any(chain.proof is not None for chain in plan.chains.values()):
        yield e.AuditEnded(study=study.id, at=at)


def submit(plan: SearchPlan, command: c.SubmitStudy, limits: Limits) -> Iterator[e.Event]:
    with refuse_sequence_errors("the study"):
        check_size(command.spec, limits)
    if plan.opened is None:
        yield command.plan
    elif plan.opened != command.plan:
        raise StateConflict("this plan is of another trainer, version, arguments, seed, determinism, inputs or project")
    if command.study in plan.studies:
        raise StateConflict(f"there is a study {command.study} already")
    begin = command.begin
    if begin is not None and not command.has_new_weights and begin["key"] not in checkpoint_needs.weights_in_use(plan):
        raise StateConflict("the weights that it begins from were just deleted with another study: submit it again")
    yield e.StudySubmitted(
        study=command.study,
        spec=command.spec,
        at=command.at,
        begin=begin,
        inputs=command.inputs,
        other_files=command.other_files,
        project=command.plan.project,
        by=command.by,
    )
    yield from command.learned
    yield from suggestion_events(command.study, command.spec.get("suggestions", ()), command.at, command.by)
    yield from isolate(plan, Study(command.study, command.spec, command.at), command.at)


def pause(study: Study) -> Iterator[e.Event]:
    if study.state == StudyState.RUNNING:
        yield e.StudyPaused(study=study.id)


def resume(study: Study) -> Iterator[e.Event]:
    if study.state == StudyState.PAUSED:
        yield e.StudyResumed(study=study.id)


def cancel(study: Study, at: float) -> Iterator[e.Event]:
    if study.state != StudyState.CANCELLED:
        yield e.StudyCancelled(study=require_open(study).id, at=at)


def complete(study: Study, at: float) -> Iterator[e.Event]:
    if study.state == StudyState.COMPLETED:
        return
    if study.kind != "external":
        raise StateConflict(f"study {study.id} has a tuner of its own, which says when it is completed")
    if study.is_final or study.active:
        active = f"{study.active} {'trial' if study.active == 1 else 'trials'}"
        standing = study.state if study.is_final else f"still training ({active})"
        raise StateConflict(f"study {study.id} is {standing} and cannot be completed")
    yield from close(study, at)


def end(plan: SearchPlan, study: Study, command: c.EndStudy) -> Iterator[e.Event]:
    """Raises `StateConflict` for a budget that is not used up."""
    by = command.reason.get("by")
    if by in BUDGETS and spent(plan, study, command.at).over(study.spec) != by:
        raise StateConflict(f"{by} of study {study.id} is not used up yet")
    if study.is_running:
        yield e.StudyCompleted(study=study.id, at=command.at, reason=command.reason)


SIZE_FIELDS = {
    "random": "num_trials",
    "asha": "num_trials",
    "async_hyperband": "num_trials",
    "median": "num_trials",
    "bandit": "num_trials",
    "early_term": "num_trials",
    "hyperband": "loops",
    "pbt": "populations",
}
"""The tuners that may go on, and the field that says how far: none of their decisions would have differed."""


def current_size(study: Study) -> int | None:
    """The value of that field now; None of a tuner that cannot go on."""
    field = SIZE_FIELDS.get(study.kind)
    return None if field is None else int(study.tuner.get(field, 1))


def reopen(study: Study, more: int, at: float, limits: Limits) -> Iterator[e.Event]:
    if study.state != StudyState.COMPLETED:
        raise StateConflict(f"study {study.id} is {study.state}; only a completed study can be reopen_event")
    if (had := current_size(study)) is None:
        raise StateConflict(f"a study with tuner {study.kind} cannot grow; these can: {', '.join(SIZE_FIELDS)}")
    field = SIZE_FIELDS[study.kind]
    if more <= had:
        raise Refused(f"{field}: must be more than the {had} that the study had, got {more}")
    if more > limits.trials:
        raise Refused(f"{field}: must be at most {limits.trials:,}, got {more}")
    yield reopen_event(study, {**study.tuner, field: more}, at)


def reopen_event(study: Study, tuner: Mapping[str, Any], at: float) -> e.StudyReopened:
    """A study that is over goes on, without that which ended it before its tuner did."""
    spec = {name: value for name, value in study.spec.items() if name != study.ending.get("by")}
    return e.StudyReopened(study=study.id, spec={**spec, "tuner": dict(tuner)}, at=at)


def reopen_if_ended(study: Study, at: float) -> Iterator[e.Event]:
    """A user asks for more: a study ended by a budget or a limit goes on without it; a cancelled study does not."""
    if study.state == StudyState.CANCELLED:
        raise StateConflict(f"study {study.id} was cancelled: nothing of it is trained any more")
    if study.is_final:
        yield reopen_event(study, study.tuner, at)


def close(study: Study, at: float) -> Iterator[e.Event]:
    if study.is_final or study.active:
        return
    failed = [trial for trial in study.trials if trial.state == TrialState.FAILED]
    if failed and not study.num_results:
        which = "the only trial" if len(failed) == 1 else f"all {len(failed)} trials"
        text = f"{which} failed; {_failure_message(failed[0])}"
        yield e.StudyFailed(study=study.id, error=text, at=at)
    else:
        yield e.StudyCompleted(study=study.id, at=at)


def fail(study: Study, error: str, at: float) -> Iterator[e.Event]:
    if not study.is_final:
        yield e.StudyFailed(study=study.id, error=error, at=at)


def check_failures(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """A metric that is not reported will not be for the other trials either; and a study may bear only so many."""
    if study.is_final:
        return
    if (error := check_error(plan, study)) is not None:
        yield e.StudyFailed(study=study.id, error=_check_failure_message(error), at=at)
        return
    if not study.failed:
        return
    failed = [study.trials[number] for number in study.failed]
    without_metric = next(
        (trial.error for trial in failed if (trial.error or {}).get("kind") == FailureKind.METRIC), None
    )
    if without_metric is not None and study.id in plan.metric_unseen:
        yield e.StudyFailed(study=study.id, error=without_metric["error"], at=at)
    elif study.max_failures is not None and len(failed) > study.max_failures:
        text = (
            f"{len(failed)} trials failed, more than max_failures: {study.max_failures}; {_failure_message(failed[-1])}"
        )
        yield e.StudyFailed(study=study.id, error=text, at=at)


def _check_failure_message(error: Mapping[str, Any]) -> str:
    """That the user's code fails on a trainer's first steps, and how: nothing was trained for it."""
    return f"the trainer failed when it was tried, before anything was trained: {error['error'].strip()}"


def _failure_message(trial: Trial) -> str:
    """What a failed trial's error ends with."""
    return f"trial {trial.number}: {last_line(trial.error)}"


def delete(study: Study, at: float) -> Iterator[e.Event]:
    if not study.is_final:
        raise StateConflict(f"study {study.id} is {study.state}: cancel it before it is deleted")
    yield e.StudyDeleted(study=study.id, at=at)
