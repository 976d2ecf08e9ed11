"""`fold` and `evolve`, which dispatch each event, and the events of trials, whose paths build the tree."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from app.domain import events as e
from app.domain import outstanding_requests, targets
from app.domain.evolve import chains, results, studies
from app.domain.search_plan import Node, SearchPlan, Study, Trial, TrialEvent, TrialRun
from app.domain.terms import NodeId, StudyId, TrialEventKind, TrialState
from stagetree.limits import DATA_SEED


def add(plan: SearchPlan, event: e.TrialAdded) -> None:
    study = plan.studies[event.study]
    hps = [event.hp | {DATA_SEED: seed} for seed in event.data_seeds] or [event.hp]
    runs = tuple(TrialRun(hp, study.root_of(event.trial, number)) for number, hp in enumerate(hps))
    trial = Trial(event.study, event.trial, event.hp, event.reason, runs)
    study.trials.append(trial)
    study.active += 1
    study.history.append(TrialEvent(TrialEventKind.START, event.trial, event.steps, reason=event.reason, hp=event.hp))
    if trial.merge_of is not None:
        study.unmerged.pop(trial.merge_of, None)
    _request(plan, trial, event)


def extend(plan: SearchPlan, event: e.TrialExtended) -> None:
    line = TrialEvent(TrialEventKind.PROMOTE, event.trial, event.steps, reason=event.reason)
    plan.studies[event.study].history.append(line)
    _request(plan, plan.trial((event.study, event.trial)), event)


def _request(plan: SearchPlan, trial: Trial, event: e.TrialAdded | e.TrialExtended) -> None:
    """Extend the paths of a trial to `steps`. The trial waits there unless the result exists already."""
    study, steps = plan.studies[trial.study], event.steps
    for run, path in zip(trial.runs, (event.path, *event.repeats), strict=True):
        _extend_path(plan, study, run, steps, path)
    before = trial.requested_steps[-1] if trial.requested_steps else plan.start_step(trial)
    study.requested += (steps - before) * len(trial.runs)
    trial.requested_steps.append(steps)
    if study.spec.merges_at_rungs and trial.trunk is None and trial.reason.get("by") == "tuner":
        study.unmerged[trial.number] = steps
    if trial.state != TrialState.ACTIVE:
        trial.state, study.active = TrialState.ACTIVE, study.active + 1
    _count_unique(plan, study, trial)
    outstanding_requests.await_evaluations(plan, study, trial, before)
    targets.note_known_evaluations(plan, trial)
    if plan.metrics(trial, steps) is not None:
        outstanding_requests.record_result(plan, trial, steps)
    else:
        outstanding_requests.await_result(plan, trial, steps)


def _end_trial(plan: SearchPlan, event: e.TrialStopped | e.TrialCancelled) -> None:
    """End a trial that its tuner stopped or a user cancelled."""
    reason = event.reason if isinstance(event, e.TrialStopped) else None
    state = TrialState.CANCELLED if reason is None else TrialState.STOPPED
    outstanding_requests.end_trial(plan, plan.trial((event.study, event.trial)), state, reason=reason)


def retry(plan: SearchPlan, trial: Trial) -> None:
    """Let a failed trial wait again for its missing results, and reset the failure counts along its path."""
    study, error = plan.studies[trial.study], trial.error or {}
    blamed = {trial.key, tuple(error.get("equal_to", ()))}
    plan.final_failures = {
        stage: failure for stage, failure in plan.final_failures.items() if failure.trial not in blamed
    }
    for name, _ in plan.sources(trial):
        plan.nodes[name].forget_failures()
        plan.touched.add(name)
    study.failed.remove(trial.number)
    study.active += 1
    trial.state, trial.error, trial.is_retried = TrialState.ACTIVE, None, True
    for step in trial.requested_steps:
        if plan.metrics(trial, step) is None:
            outstanding_requests.await_result(plan, trial, step)
    outstanding_requests.await_evaluations(plan, study, trial, 0)
    outstanding_requests.complete_if_done(plan, trial)


def prioritize(plan: SearchPlan, event: e.TrialPrioritized) -> None:
    trial = plan.trial((event.study, event.trial))
    trial.priority, trial.priority_reason = event.priority, event.reason
    line = TrialEvent(
        TrialEventKind.PRIORITIZE, trial.number, trial.steps, reason=event.reason, priority=event.priority
    )
    plan.studies[event.study].history.append(line)
    steps = {*trial.requested_steps, *trial.unevaluated}
    plan.touched.update(node.id for step in steps for node in plan.nodes_of(trial, step))


def _extend_path(plan: SearchPlan, study: Study, run: TrialRun, steps: int, path: Mapping[NodeId, int]) -> None:
    parent = run.path[-1] if run.path else None
    for name, start in path.items():
        if name not in plan.nodes:
            _add_node(plan, name, parent, start, run.hp)
            plan.nodes[name].is_isolated = bool(study.isolated)
        plan.nodes[name].trials += 1
        run.path.append(name)
        parent = name


def _add_node(plan: SearchPlan, name: NodeId, parent: NodeId | None, start: int, hp: Mapping[str, Any]) -> None:
    node = plan.detached.pop(name, None) or Node(name, parent, start, hp)
    node.parent, node.start, node.hp = parent, start, hp
    plan.nodes[name] = node
    if name not in plan.means:
        siblings = plan.roots if parent is None else plan.nodes[parent].children
        siblings.append(name)
    plan.touched.add(name)
    if node.steps_run:
        plan.measured.append(name)
        plan.progress_version += 1


def _add_average(plan: SearchPlan, event: e.AverageNamed) -> None:
    """Record the sources of an average. A trial that begins with it adds the node later."""
    if event.node not in plan.means:
        plan.means[event.node] = event.shares
        for share in event.shares:
            plan.averages.setdefault(share.node, {}).setdefault(share.step, []).append(event.node)


def _count_unique(plan: SearchPlan, study: Study, trial: Trial) -> None:
    for name, end in plan.path_ends(trial):
        before = study.max_step_by_node.setdefault(name, plan.nodes[name].start)
        if end > before:
            study.max_step_by_node[name] = end
            study.unique += end - before


def fold(events: Iterable[e.Event], plan: SearchPlan | None = None) -> SearchPlan:
    """The plan after these events. A new plan leaves out the studies that are struck in them."""
    events = list(events)
    plan = plan or SearchPlan(struck=struck_studies(events))
    with collector_paused():
        for event in events:
            evolve(plan, event)
            plan.version += 1
    return plan


def struck_studies(events: Iterable[e.Event]) -> frozenset[StudyId]:
    """The studies that are struck in these events."""
    return frozenset(event.study for event in events if isinstance(event, e.StudyStruck))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: folding makes no cycles, and collections would take most of the time."""
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
        case e.AverageNamed():
            _add_average(plan, event)
        case e.TrialAdded():
            add(plan, event)
        case e.TrialExtended():
            extend(plan, event)
        case e.TrialStopped() | e.TrialCancelled():
            _end_trial(plan, event)
        case e.TrialPrioritized():
            prioritize(plan, event)
        case e.TrialRetried():
            retry(plan, plan.trial((event.study, event.trial)))
        case e.ChainAssigned():
            chains.assign(plan, event)
        case e.StageCompleted():
            chains.complete(plan, event)
        case e.ChainEnded():
            chains.close(plan, event)
        case e.StageFailed():
            chains.fail(plan, event)
        case e.Evaluated():
            results.record_metrics(plan, event)
        case e.CheckpointKept() | e.CheckpointCached():
            results.record_checkpoint(plan, event)
        case e.CheckpointReleased():
            results.release_checkpoint(plan, event)
        case e.CheckpointDropped():
            results.drop_checkpoint(plan, event)
        case e.ExactnessLost() | e.ExactnessTested():
            results.record_exactness(plan, event)
        case _ if isinstance(event, studies.EnvironmentEvent):
            studies.record_environment(plan, event)
        case _:
            studies.record(plan, event)


def _is_struck(plan: SearchPlan, event: e.Event) -> bool:
    """Whether to skip an event because its study was struck. Only the existence of the study is kept."""
    stays = isinstance(event, e.StudySubmitted | e.StudyStruck)
    return not stays and getattr(event, "study", None) in plan.struck
