"""One event after another, each handed to what it is about."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from app.domain import awaiting
from app.domain import events as e
from app.domain.evolve import chains, results, studies, trials
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan
from app.domain.states import TrialState


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
            plan.opened, plan.packing = event, event.packing
        case e.TrialAdded():
            trials.add(plan, event)
        case e.TrialExtended():
            trials.extend(plan, event)
        case e.TrialStopped():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.STOPPED, reason=event.reason)
        case e.TrialPrioritized():
            trials.prioritize(plan, event)
        case e.TrialCancelled():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.CANCELLED)
        case e.TrialRetried():
            trials.retry(plan, plan.trial((event.study, event.trial)))
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
        case e.CheckpointReleased():
            results.release_checkpoint(plan, event)
        case e.CheckpointDropped():
            results.drop_checkpoint(plan, event)
        case e.ExactnessLost() | e.ExactnessTested():
            results.take_exactness(plan, event)
        case e.PackingProfiled() | e.PackingChosen() | e.InputsSeen() | e.EnvironmentSeen() | e.WeightsDropped():
            studies.take_surroundings(plan, event)
        case _:
            studies.take(plan, event)


def _is_struck(plan: SearchPlan, event: e.Event) -> bool:
    """Whether it is an event of a study that was struck: only that there is one remains of it."""
    kept = isinstance(event, e.StudySubmitted | e.StudyStruck)
    return not kept and getattr(event, "study", None) in plan.struck
