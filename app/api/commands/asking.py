"""Trials that a user asks for: new ones, with the hyper-parameters that the study's others have, and longer ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.api.commands.writing import Write
from app.api.errors import Invalid
from app.api.services import Services
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan, Study
from app.events.rows import StudyRecord
from stagetree.limits import Limits
from stagetree.sequences import parse
from stagetree.space import Space

Json = dict[str, Any]


def add_trial(use: Services, row: StudyRecord, write: Write, asked: c.Start) -> int:
    """One more trial; its number. Raises `Invalid` where its hyper-parameters are not those of the study."""
    command = c.AddTrial(study=StudyId(row.id), hp=asked.hp, steps=asked.steps)
    recorded = write(row.stream, lambda plan: _decide(plan, command, use.limits))
    added = recorded[0].event
    assert isinstance(added, e.TrialAdded)
    return added.trial


def ask(use: Services, row: StudyRecord, write: Write, asks: Sequence[c.Start | c.Extend]) -> list[int]:
    """The numbers of the trials, in the order asked for: all or nothing. Raises `Invalid` as `add_trial` does."""
    command = c.Ask(study=StudyId(row.id), actions=tuple(asks))
    recorded = write(row.stream, lambda plan: _decide(plan, command, use.limits))
    added = iter([each.event.trial for each in recorded if isinstance(each.event, e.TrialAdded)])
    return [each.trial if isinstance(each, c.Extend) else next(added) for each in asks]


def _decide(plan: SearchPlan, command: c.AddTrial | c.Ask, limits: Limits) -> tuple[e.Event, ...]:
    events = decide(plan, command, limits)
    study = plan.studies[command.study]
    names = _hyper_parameters(study)
    for event in events:
        if isinstance(event, e.TrialAdded):
            names = _existing(study, event.hp) or names or set(event.hp)
            if names != set(event.hp):
                got = ", ".join(sorted(event.hp))
                raise Invalid("hp", f"must hold exactly {', '.join(sorted(names))}, got {got}")
    return events


def _hyper_parameters(study: Study) -> set[str]:
    """The names that all trials of the study have; empty where that is not known yet."""
    if study.trials:
        return set(study.trials[0].hp)
    listed = study.tuner.get("trials")
    return set(study.space or (listed[0]["hp"] if listed else ()))


def _existing(study: Study, hp: Json) -> set[str]:
    """The names that belong into a configuration, in a space where that depends on it; empty in others."""
    if study.space is None or not (space := Space(dict(study.space))).is_conditional:
        return set()
    configuration = {name: parse(value) for name, value in hp.items()}
    return {name for name in study.space if space.exists(name, configuration)}
