"""One event after another, each handed to what it is about."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import assert_never

from app.domain import awaiting
from app.domain import events as e
from app.domain.evolve import chains, results, studies, trials
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.states import StudyState, TrialEventKind, TrialState


def fold(events: Iterable[e.Event], plan: SearchPlan | None = None) -> SearchPlan:
    """The plan after these events; of a study that is struck among them, nothing is in a plan that begins here."""
    events = list(events)
    plan = plan or SearchPlan(struck=strikes(events))
    with collector_paused():
        for event in events:
            evolve(plan, event)
            plan.version += 1
    return plan


def strikes(events: Iterable[e.Event]) -> frozenset[StudyId]:
    """The studies that are struck in these events."""
    return frozenset(event.study for event in events if isinstance(event, e.StudyStruck))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without looks for garbage inside the block: folding makes none, and looking takes most of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def evolve(plan: SearchPlan, event: e.Event) -> None:
    """Take one event into the plan, in place."""
    if plan.struck and _is_struck(plan, event):
        return
    match event:
        case e.PlanOpened():
            plan.opened = event
        case e.StudySubmitted():
            plan.studies[event.study] = Study(event.study, event.spec, event.at)
            plan.unheard[event.study] = None
        case e.TrialAdded():
            trials.add(plan, event)
        case e.TrialExtended():
            line = TrialEvent(TrialEventKind.PROMOTE, event.trial, event.steps, reason=event.reason)
            plan.studies[event.study].history.append(line)
            trials.ask(plan, plan.trial((event.study, event.trial)), event.steps, event.path)
        case e.TrialStopped():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.STOPPED, reason=event.reason)
        case e.TrialPrioritized():
            trials.prioritize(plan, event)
        case e.TrialCancelled():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.CANCELLED)
        case e.StudyPaused():
            studies.set_state(plan, event.study, StudyState.PAUSED)
        case e.StudyResumed():
            studies.set_state(plan, event.study, StudyState.RUNNING)
        case e.StudyReopened():
            studies.set_state(plan, event.study, StudyState.RUNNING)
            plan.studies[event.study].spec, plan.studies[event.study].finished_at = event.spec, None
        case e.StudyCancelled():
            studies.finish(plan, event.study, StudyState.CANCELLED, event.at)
        case e.StudyCompleted():
            studies.finish(plan, event.study, StudyState.COMPLETED, event.at)
        case e.StudyFailed():
            studies.finish(plan, event.study, StudyState.FAILED, event.at)
            plan.studies[event.study].error = event.error
        case e.StudyStruck():
            studies.finish(plan, event.study, StudyState.FAILED, event.at)
            plan.studies[event.study].error = f"struck by an operator: {event.reason}"
        case e.ChainAssigned():
            chains.assign(plan, event)
        case e.StageCompleted():
            chains.complete(plan, event)
        case e.ChainEnded():
            chains.close(plan, event)
        case e.StageFailed():
            chains.fail(plan, event)
        case e.Evaluated():
            results.take_metrics(plan, event)
        case e.CheckpointKept():
            results.keep_checkpoint(plan, event)
        case e.CheckpointDropped():
            results.drop_checkpoint(plan, event)
        case _:
            assert_never(event)


def _is_struck(plan: SearchPlan, event: e.Event) -> bool:
    """Whether it is an event of a study that was struck: only that there is one remains of it."""
    kept = isinstance(event, e.StudySubmitted | e.StudyStruck)
    return not kept and getattr(event, "study", None) in plan.struck
