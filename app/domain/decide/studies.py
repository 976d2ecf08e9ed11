"""Decisions on the life of a study, from its submission to its end, on inexact trainers, and on annotations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import budget_use
from app.domain.failures import last_line
from app.domain.schedule import path
from app.domain.search_plan import BUDGETS, SearchPlan, StoredSpec, Study, Trial, get_trial, require_open
from app.domain.terms import FailureKind, InexactPolicy, Refused, StateConflict, StudyState, TrialState, Unknown
from app.domain.trainer_check import check_error, check_failure_text
from app.domain.trial_requests import refuse_sequence_errors, run_seeds, suggestion_events
from stagetree.limits import Limits, check_size


def isolate(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """Apply the `inexact` policy of a study, unless the trainer is exact or the study has ended."""
    test = plan.first_difference
    if test is None or study.is_final or study.isolated:
        return
    match study.spec.inexact:
        case InexactPolicy.REFUSE:
            text = f"the trainer is not exact, and the study says inexact: refuse. {test.difference}"
            yield e.StudyFailed(study=study.id, error=text, at=at)
        case InexactPolicy.ALONE if study.spec.merges_at_rungs:
            why = "each trial is trained alone and keeps no states, of which tuner.rung_value.merge takes the mean"
            text = f"the trainer is not exact, so {why}. {test.difference}"
            yield e.StudyFailed(study=study.id, error=text, at=at)
        case InexactPolicy.ALONE:
            yield e.StudyIsolated(study=study.id, reason=test.difference, at=at)
            kept = (trial for trial in study.trials if trial.state != TrialState.CANCELLED)
            by_users = (trial for trial in kept if trial.reason.get("by") == "user" and not plan.start_step(trial))
            for number, trial in enumerate(by_users):
                yield from _restart_trial(study, trial, number)


def _restart_trial(study: Study, trial: Trial, number: int) -> Iterator[e.Event]:
    """Request a user's trial again. Averages cannot be restarted, and a tuner starts its own trials anew."""
    ends, before = [study.isolated_root(number, run) for run in range(len(trial.runs))], 0
    for steps in trial.requested_steps:
        runs = zip(trial.runs, ends, strict=True)
        paths = [path(run.hp, steps, end, after=before, seed=study.spec.seed) for run, end in runs]
        request: dict[str, Any] = {"study": study.id, "trial": number, "steps": steps, "reason": {"by": "user"}}
        request |= {"path": paths[0], "repeats": paths[1:]}
        yield (
            e.TrialExtended(**request) if before else e.TrialAdded(**request, hp=trial.hp, data_seeds=run_seeds(trial))
        )
        ends, before = [next(reversed(nodes), end) for nodes, end in zip(paths, ends, strict=True)], steps


def request_audit(study: Study, at: float) -> Iterator[e.Event]:
    """Start an audit. Raises `StateConflict` if the study has nothing to compare."""
    if study.isolated:
        raise StateConflict(f"each trial of study {study.id} was trained alone: there is nothing to compare")
    if study.deleted:
        raise StateConflict(f"study {study.id} is deleted: its states may be gone")
    if not study.is_audited:
        yield e.AuditRequested(study=study.id, at=at)


def end_audit(plan: SearchPlan, study: Study, at: float) -> Iterator[e.Event]:
    """End the audit, unless a comparison is running."""
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
    spec = StoredSpec.from_json(command.spec)
    yield from suggestion_events(command.study, spec.suggestions, command.at, command.by)
    yield from isolate(plan, Study(command.study, spec, command.at), command.at)


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
    if study.spec.kind != "external":
        raise StateConflict(f"study {study.id} has a tuner of its own, which says when it is completed")
    if study.is_final or study.active:
        active = f"{study.active} {'trial' if study.active == 1 else 'trials'}"
        standing = study.state if study.is_final else f"still training ({active})"
        raise StateConflict(f"study {study.id} is {standing} and cannot be completed")
    yield from close(study, at)


def end(plan: SearchPlan, study: Study, command: c.EndStudy) -> Iterator[e.Event]:
    """End the study for a reason. Raises `StateConflict` if the reason is a budget that is not used up."""
    by = command.reason.get("by")
    if by in BUDGETS and budget_use(plan, study, command.at).exhausted_budget(study.spec.budgets) != by:
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
"""The tuners that can continue with more trials, and their field for the number. A larger number from the start would
not have changed any of their decisions."""


def current_size(study: Study) -> int | None:
    """The value of the tuner's `SIZE_FIELDS` field; None if the tuner cannot continue."""
    field = SIZE_FIELDS.get(study.spec.kind)
    return None if field is None else int(study.spec.tuner.get(field, 1))


def reopen(study: Study, more: int, at: float, limits: Limits) -> Iterator[e.Event]:
    if study.state != StudyState.COMPLETED:
        raise StateConflict(f"study {study.id} is {study.state}; only a completed study can be reopened")
    if (had := current_size(study)) is None:
        raise StateConflict(f"a study with tuner {study.spec.kind} cannot grow; these can: {', '.join(SIZE_FIELDS)}")
    field = SIZE_FIELDS[study.spec.kind]
    if more <= had:
        raise Refused(f"{field}: must be more than the {had} that the study had, got {more}")
    if more > limits.trials:
        raise Refused(f"{field}: must be at most {limits.trials:,}, got {more}")
    yield reopen_event(study, {**study.spec.tuner, field: more}, at)


def reopen_event(study: Study, tuner: Mapping[str, Any], at: float) -> e.StudyReopened:
    """The event that reopens a study without the limit that ended it, if one did."""
    spec = {name: value for name, value in study.spec.json.items() if name != study.ending.get("by")}
    return e.StudyReopened(study=study.id, spec={**spec, "tuner": dict(tuner)}, at=at)


def reopen_if_ended(study: Study, at: float) -> Iterator[e.Event]:
    """Reopen an ended study for a user's request, without the budget or limit that ended it.

    Raises `StateConflict` for a cancelled study.
    """
    if study.state == StudyState.CANCELLED:
        raise StateConflict(f"study {study.id} was cancelled: nothing of it is trained any more")
    if study.is_final:
        yield reopen_event(study, study.spec.tuner, at)


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
    """Fail the study if its trainer failed the check, does not report the metric, or more than `max_failures` failed.

    If one trial does not report the metric, no other trial will.
    """
    if study.is_final:
        return
    if (error := check_error(plan, study)) is not None:
        yield e.StudyFailed(study=study.id, error=check_failure_text(error), at=at)
        return
    if not study.failed:
        return
    failed = [study.trials[number] for number in study.failed]
    without_metric = next(
        (trial.error for trial in failed if (trial.error or {}).get("kind") == FailureKind.METRIC), None
    )
    if without_metric is not None and study.id in plan.metric_unseen:
        yield e.StudyFailed(study=study.id, error=without_metric["error"], at=at)
    elif (most := study.spec.max_failures) is not None and len(failed) > most:
        text = f"{len(failed)} trials failed, more than max_failures: {most}; {_failure_message(failed[-1])}"
        yield e.StudyFailed(study=study.id, error=text, at=at)


def _failure_message(trial: Trial) -> str:
    return f"trial {trial.number}: {last_line(trial.error)}"


def delete(study: Study, at: float) -> Iterator[e.Event]:
    if not study.is_final:
        raise StateConflict(f"study {study.id} is {study.state}: cancel it before it is deleted")
    yield e.StudyDeleted(study=study.id, at=at)


# ---------------------------------------------------------------------------------------------------------- annotations


MOST_CHARACTERS = 2_000
"""Limit for a note, and for an attribute's value as JSON. Every response about a study contains them all."""

MOST_NOTES = 500
"""Limit for a study."""

MOST_LABELS = 50
"""Limit for the tags of a study, and for its attributes."""

NAME = re.compile(r"[^\s,=]{1,64}")
"""The name of a tag or an attribute: one word, so that names can be listed and used in filters."""


def add_note(study: Study, command: c.AddNote) -> Iterator[e.Event]:
    """Add a note, also to an ended study. Raises `Unknown` if the study does not have the trial."""
    text = _text(command.text)
    if len(study.notes) >= MOST_NOTES:
        raise Refused(f"study {study.id} has {MOST_NOTES:,} notes, the most that a study may have")
    if command.trial is not None:
        get_trial(study, command.trial)
    yield e.NoteAdded(study=study.id, trial=command.trial, text=text, at=command.at, by=command.by)


def correct_note(study: Study, command: c.CorrectNote) -> Iterator[e.Event]:
    """Replace the text of a note. Raises `Unknown` if the event did not add a note."""
    text = _text(command.text)
    version = command.event + study.submitted_version - 1
    number = next((at for at, note in enumerate(study.notes) if note.version == version), None)
    if number is None:
        raise Unknown(f"event {command.event} of study {study.id} is not a note")
    if study.notes[number].text != text:
        yield e.NoteCorrected(study=study.id, note=number, text=text, at=command.at, by=command.by)


def _text(text: str) -> str:
    if not text.strip():
        raise Refused("text: must say something, got an empty note")
    if len(text) > MOST_CHARACTERS:
        raise Refused(f"text: must be at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    return text.strip()


def label(study: Study, command: c.LabelStudy) -> Iterator[e.Event]:
    for name in (*command.add, *command.remove, *command.attributes):
        _check_name(name)
    for name, value in command.attributes.items():
        _check_value(name, value)
    remaining = [tag for tag in study.tags if tag not in command.remove]
    tags = list(dict.fromkeys((*remaining, *command.add)))
    changed = {name: value for name, value in command.attributes.items() if study.attributes.get(name) != value}
    _check_count("tags", len(tags))
    _check_count("attributes", len([name for name in (study.attributes | changed) if changed.get(name, 0) is not None]))
    if tags != study.tags or changed:
        yield e.StudyLabelled(study=study.id, tags=tags, attributes=changed, at=command.at, by=command.by)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Refused(f"{name!r:.80}: a tag or an attribute's name is a word of at most 64 characters, without , and =")


def _check_value(name: str, value: Any) -> None:
    try:
        size = len(json.dumps(value, allow_nan=False))
    except ValueError:
        raise Refused(f"attributes.{name}: must be JSON, whose numbers are finite, got {value!r:.80}") from None
    if size > MOST_CHARACTERS:
        raise Refused(f"attributes.{name}: must be at most {MOST_CHARACTERS:,} characters of JSON, got {size:,}")


def _check_count(kind: str, count: int) -> None:
    if count > MOST_LABELS:
        raise Refused(f"{kind}: a study may have {MOST_LABELS}, got {count}")
