"""Changes of an existing study: more and longer trials, notes, tags and attributes, its deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide, price_of
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import ANONYMOUS_ADMIN, Principal, Refused, StudyId, Unknown
from app.events import StudyRecord
from app.service.services import InvalidField, Services, Write
from app.service.trial_logs import delete_logs
from app.service.views import plans
from stagetree.limits import Limits
from stagetree.models.service import Event
from stagetree.sequences import parse

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]


def add_trial(use: Services, row: StudyRecord, write: Write, start: c.Start) -> int:
    """Add a trial; its number. Raises `InvalidField` if its hyper-parameters are not the study's."""
    command = c.AddTrial(study=StudyId(row.id), hp=start.hp, steps=start.steps)
    recorded = write(row.stream, lambda plan: _decide(plan, command, use.limits))
    added = recorded[0].event
    assert isinstance(added, e.TrialAdded)
    return added.trial


def ask(use: Services, row: StudyRecord, write: Write, asks: Sequence[c.Start | c.Extend]) -> list[int]:
    """The numbers of the trials, in the order asked for: all or nothing. Raises `InvalidField` as `add_trial` does."""
    command = c.AskForTrials(study=StudyId(row.id), actions=tuple(asks))
    recorded = write(row.stream, lambda plan: _decide(plan, command, use.limits))
    added = iter([each.event.trial for each in recorded if isinstance(each.event, e.TrialAdded)])
    return [each.trial if isinstance(each, c.Extend) else next(added) for each in asks]


def add_composed_trial(use: Services, row: StudyRecord, write: Write, command: c.BranchTrial | c.AverageTrials) -> int:
    """Add a branch or an average of trials; its number. Raises `Refused` and `StateConflict`."""
    recorded = write(row.stream, lambda plan: decide(plan, command, use.limits))
    return next(each.event.trial for each in recorded if isinstance(each.event, e.TrialAdded))


def price_of_trial(use: Services, row: StudyRecord, command: c.AddTrial | c.BranchTrial | c.AverageTrials) -> Json:
    """The steps that this trial would cost now. Raises as `add_trial` or `add_composed_trial` does."""
    with use.open_study(row) as (plan, _):
        if isinstance(command, c.AverageTrials) and plan.opened is not None:
            trainer = plan.opened.trainer
            source = use.trainers.describe().get(trainer)  # slots check a trainer that this server lacks
            if source is not None and "average" in source.lacks:
                missing = "has no method `average(self, states)`, which takes the mean of states"
                raise Refused(f"trainer {trainer!r} {missing}")
        if isinstance(command, c.AddTrial):
            _decide(plan, command, use.limits)
        return asdict(price_of(plan, command, use.limits))


def _decide(plan: SearchPlan, command: c.AddTrial | c.AskForTrials, limits: Limits) -> tuple[e.Event, ...]:
    events = decide(plan, command, limits)
    study = plan.studies[command.study]
    names = _hyper_parameters(study)
    for event in events:
        if isinstance(event, e.TrialAdded):
            names = _existing(study, event.hp) or names or set(event.hp)
            if names != set(event.hp):
                got = ", ".join(sorted(event.hp))
                raise InvalidField("hp", f"must hold exactly {', '.join(sorted(names))}, got {got}")
    return events


def _hyper_parameters(study: Study) -> set[str]:
    """The hyper-parameters of all trials of the study; empty while unknown."""
    if study.trials:
        return set(study.trials[0].hp)
    if study.spec.space is not None:
        return set(_spec(study).search_space.hyper_parameters)
    listed = study.spec.tuner.get("trials")
    return set(listed[0]["hp"] if listed else ())


def _existing(study: Study, hp: Json) -> set[str]:
    """The hyper-parameters of a configuration in a conditional space; empty for other spaces."""
    if study.spec.space is None:
        return set()
    spec = _spec(study)
    if spec.has_lengths or not spec.search_space.is_conditional:
        return set()
    return set(spec.search_space.names({name: parse(value) for name, value in hp.items()}))


def _spec(study: Study) -> StudySpec:
    from stagetree.spec import StudySpec  # slow to import, and used by few commands that read a store

    return StudySpec(**study.spec.json)


def retry_trial(use: Services, row: StudyRecord, write: Write, number: int) -> None:
    """Retry a failed trial. Raises `Unknown` and `StateConflict`."""
    command = c.RetryTrial(study=StudyId(row.id), trial=number, at=use.clock())
    write(row.stream, lambda plan: decide(plan, command))


def release_slot(use: Services, name: str) -> None:
    """End the quarantine of a slot. Its worker quarantines it again if it is still unhealthy. Raises `Unknown`."""
    with use.records.write() as rows:
        if (slot := rows.slots.get(name)) is None:
            raise Unknown(f"there is no slot {name}")
        rows.slots.quarantine(name, slot.owner, seconds=None, reason=None)
    use.wake_scheduler()


def add_note(
    use: Services, row: StudyRecord, write: Write, text: str, trial: int | None, who: Principal = ANONYMOUS_ADMIN
) -> Event:
    """Add a note; its event. Raises `Unknown` for an unknown trial, and `Refused` for an empty or too long text."""
    command = c.AddNote(study=StudyId(row.id), text=text, trial=trial, at=use.clock(), by=who.signature)
    (recorded,) = write(row.stream, lambda plan: decide(plan, command, use.limits))
    with use.open_study(row) as (_, study):
        return plans.event(recorded, study.submitted_version - 1)


def correct_note(
    use: Services, row: StudyRecord, write: Write, event: int, text: str, who: Principal = ANONYMOUS_ADMIN
) -> None:
    """Replace the text of the note that `event` added. Raises `Unknown` if that is no note, `Refused` as above."""
    command = c.CorrectNote(study=StudyId(row.id), event=event, text=text, at=use.clock(), by=who.signature)
    write(row.stream, lambda plan: decide(plan, command, use.limits))


def label(
    use: Services,
    row: StudyRecord,
    write: Write,
    add: Sequence[str],
    remove: Sequence[str],
    attributes: Json,
    who: Principal = ANONYMOUS_ADMIN,
) -> None:
    """Tag the study and set attributes; None removes one. Raises `Refused`."""
    command = c.LabelStudy(
        study=StudyId(row.id),
        add=tuple(add),
        remove=tuple(remove),
        attributes=attributes,
        at=use.clock(),
        by=who.signature,
    )
    write(row.stream, lambda plan: decide(plan, command, use.limits))


def delete_study(use: Services, row: StudyRecord, write: Write) -> None:
    """Delete a study that is over. Raises `StateConflict` if it is not."""
    command = c.DeleteStudy(study=StudyId(row.id), at=use.clock())
    write(row.stream, lambda plan: decide(plan, command, use.limits))
    if use.logs is not None:
        with use.plans.holding(row.stream) as plan:
            delete_logs(use.logs, plan)
