"""What each event does to a search plan.

`evolve` is total, silent and boring: it believes every event and changes the plan in place (whoever folds owns it).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, assert_never

from app.domain import awaiting, schedule
from app.domain import events as e
from app.domain.ids import NodeId, StudyId
from app.domain.search_plan import Chain, Checkpoint, Node, SearchPlan, Study, Trial, TrialEvent
from app.domain.states import ChainOutcome, FailureKind, StudyState, TrialEventKind, TrialState

MAX_UNSAVED = 3
"""A checkpoint that could not be written this often fails the trials that branch there: others need no state there."""


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
            _add(plan, event)
        case e.TrialExtended():
            line = TrialEvent(TrialEventKind.PROMOTE, event.trial, event.steps, reason=event.reason)
            plan.studies[event.study].history.append(line)
            _ask(plan, plan.trial((event.study, event.trial)), event.steps, event.path)
        case e.TrialStopped():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.STOPPED, reason=event.reason)
        case e.TrialPrioritized():
            _prioritize(plan, event)
        case e.TrialCancelled():
            awaiting.end_trial(plan, plan.trial((event.study, event.trial)), TrialState.CANCELLED)
        case e.StudyPaused():
            _set_state(plan, event.study, StudyState.PAUSED)
        case e.StudyResumed():
            _set_state(plan, event.study, StudyState.RUNNING)
        case e.StudyReopened():
            _set_state(plan, event.study, StudyState.RUNNING)
            plan.studies[event.study].spec, plan.studies[event.study].finished_at = event.spec, None
        case e.StudyCancelled():
            _finish(plan, event.study, StudyState.CANCELLED, event.at)
        case e.StudyCompleted():
            _finish(plan, event.study, StudyState.COMPLETED, event.at)
        case e.StudyFailed():
            _finish(plan, event.study, StudyState.FAILED, event.at)
            plan.studies[event.study].error = event.error
        case e.StudyStruck():
            _finish(plan, event.study, StudyState.FAILED, event.at)
            plan.studies[event.study].error = f"struck by an operator: {event.reason}"
        case e.ChainAssigned():
            _assign(plan, event)
        case e.StageCompleted():
            _complete(plan, event)
        case e.ChainEnded():
            _close(plan, event)
        case e.StageFailed():
            _fail(plan, event)
        case e.Evaluated():
            _evaluated(plan, event)
        case e.CheckpointKept():
            _kept(plan, event)
        case e.CheckpointDropped():
            _dropped(plan, event)
        case _:
            assert_never(event)


def _is_struck(plan: SearchPlan, event: e.Event) -> bool:
    """Whether it is an event of a study that was struck: only that there is one remains of it."""
    kept = isinstance(event, e.StudySubmitted | e.StudyStruck)
    return not kept and getattr(event, "study", None) in plan.struck


# -------------------------------------------------------------------------------------------------- trials and studies


def _add(plan: SearchPlan, event: e.TrialAdded) -> None:
    study = plan.studies[event.study]
    trial = Trial(event.study, event.trial, event.hp, event.reason)
    study.trials.append(trial)
    study.active += 1
    study.history.append(TrialEvent(TrialEventKind.START, event.trial, event.steps, reason=event.reason, hp=event.hp))
    _ask(plan, trial, event.steps, event.path)


def _ask(plan: SearchPlan, trial: Trial, steps: int, path: Mapping[NodeId, int] | None) -> None:
    """The trial is wanted at `steps`: its path grows as far as that, and it waits unless the result is there."""
    study, before = plan.studies[trial.study], trial.asked[-1] if trial.asked else 0
    study.requested += steps - before
    trial.asked.append(steps)
    if trial.state != TrialState.ACTIVE:
        trial.state, study.active = TrialState.ACTIVE, study.active + 1
    _lengthen(plan, study, trial, steps, path)
    _count_unique(plan, study, trial)
    awaiting.await_evaluations(plan, study, trial, before)
    node = plan.nodes[trial.path[-1]]
    if steps in node.metrics:
        awaiting.answer(plan, trial, steps)
    else:
        awaiting.wait(plan, node, steps, trial)


def _prioritize(plan: SearchPlan, event: e.TrialPrioritized) -> None:
    trial = plan.trial((event.study, event.trial))
    trial.priority, trial.standing = event.priority, event.reason
    line = TrialEvent(
        TrialEventKind.PRIORITIZE, trial.number, trial.steps, reason=event.reason, priority=event.priority
    )
    plan.studies[event.study].history.append(line)
    plan.touched.update(plan.node_of(trial, step).id for step in {*trial.asked, *trial.unevaluated})


def _lengthen(plan: SearchPlan, study: Study, trial: Trial, steps: int, path: Mapping[NodeId, int] | None) -> None:
    if path is None:  # older than recorded paths: the whole way, by the names of then
        trial.path, path = [], schedule.path(trial.hp, steps, study.root_of(trial.number), joined=False)
    parent = trial.path[-1] if trial.path else None
    for name, start in path.items():
        if name not in plan.nodes:
            _grow(plan, name, parent, start, trial.hp)
        trial.path.append(name)
        parent = name


def _grow(plan: SearchPlan, name: NodeId, parent: NodeId | None, start: int, hp: Mapping[str, Any]) -> None:
    node = plan.aside.pop(name, None) or Node(name, parent, start, hp)
    node.parent, node.start, node.hp = parent, start, hp
    plan.nodes[name] = node
    siblings = plan.roots if parent is None else plan.nodes[parent].children
    siblings.append(name)
    plan.touched.add(name)
    if node.steps_run:
        plan.measured.append(name)


def _count_unique(plan: SearchPlan, study: Study, trial: Trial) -> None:
    for name, end in plan.ends(trial):
        before = study.deepest.get(name, plan.nodes[name].start)
        if end > before:
            study.deepest[name] = end
            study.unique += end - before


def _set_state(plan: SearchPlan, study: StudyId, state: StudyState) -> None:
    plan.studies[study].state = state
    plan.touched.update(plan.studies[study].deepest)


def _finish(plan: SearchPlan, study: StudyId, state: StudyState, at: float) -> None:
    for trial in plan.studies[study].trials:
        for step in sorted(trial.unevaluated):
            awaiting.leave_unevaluated_by(plan, trial, step)
        if trial.state == TrialState.ACTIVE:
            awaiting.end_trial(plan, trial, TrialState.CANCELLED)
    _set_state(plan, study, state)
    plan.studies[study].finished_at = at
    plan.unheard.pop(study, None)


# -------------------------------------------------------------------------------------------------- chains and results


def _assign(plan: SearchPlan, event: e.ChainAssigned) -> None:
    plan.chains[event.chain] = Chain(event.chain, event.slot, event.stages, event.at)
    for index, stage in enumerate(event.stages):
        plan.node(stage.node).running[event.chain, index] = (stage.start, stage.end)
        plan.touched.add(stage.node)


def _complete(plan: SearchPlan, event: e.StageCompleted) -> None:
    chain = plan.chains[event.chain]
    stage, chain.index = chain.stages[event.index], event.index + 1
    chain.seconds += event.seconds
    node = plan.node(stage.node)
    node.running.pop((chain.id, event.index), None)
    if stage.end not in node.checkpoints:
        node.saving[stage.end] = chain.id
    _charge(plan, stage, stage.end - stage.start, event.seconds, recorded=stage.end)
    _forgive(node, stage)
    plan.touched.add(node.id)


def _forgive(node: Node, stage: e.Stage) -> None:
    """What went wrong in a stage is forgotten once it has gone well."""
    node.lost.pop(stage.start, None)
    node.failures = {place: slots for place, slots in node.failures.items() if place[0] >= stage.end}


def _charge(plan: SearchPlan, stage: e.Stage, steps: int, seconds: float, recorded: int | None = None) -> None:
    """So many steps were run, and trained up to step `recorded`; None: to the last checkpoint among them."""
    node, study = plan.node(stage.node), plan.studies[stage.study]
    if recorded is None:
        recorded = max((at for at in node.checkpoints if at <= stage.start + steps), default=stage.start)
    study.executed += steps
    if node.id in plan.nodes:
        study.fresh += max(0, recorded - max(stage.start, node.trained))
    node.trained = max(node.trained, recorded)
    study.gpu_seconds += seconds
    if steps and not node.steps_run and node.id in plan.nodes:
        plan.measured.append(node.id)
    node.steps_run += steps
    plan.stages_run += 1
    node.seconds += seconds if steps else 0.0


def _close(plan: SearchPlan, event: e.ChainEnded) -> None:
    chain = plan.chains[event.chain]
    if not chain.is_trained:
        stage = chain.stages[chain.index]
        _charge(plan, stage, event.steps, event.seconds)
        if event.outcome == ChainOutcome.LOST:
            lost = plan.node(stage.node).lost
            lost[stage.start] = lost.get(stage.start, 0) + 1
    _release(plan, chain)


def _release(plan: SearchPlan, chain: Chain) -> None:
    """Nothing more comes from this chain: what it did not train or save is outstanding again."""
    for index, stage in enumerate(chain.stages):
        node = plan.node(stage.node)
        if node.running.pop((chain.id, index), None):
            plan.touched.add(node.id)
        if node.saving.get(stage.end) == chain.id:
            del node.saving[stage.end]
            awaiting.leave_unevaluated(plan, node, stage.end)
            plan.touched.add(node.id)
    del plan.chains[chain.id]


MOST_FAILURES = 3
"""Errors that differ each time count as well, once there are so many times more of them than equal ones may be."""


def _fail(plan: SearchPlan, event: e.StageFailed) -> None:
    """The user's code failed: the stage is tried again, and the trials that have no restart left fail."""
    chain = plan.chains[event.chain]
    stage = chain.stages[event.index]
    node = plan.node(stage.node)
    _charge(plan, stage, max(event.step - stage.start, 0), event.seconds)
    error = {"kind": event.kind, "step": event.step, "error": event.error}
    tries = _restarts_used(node, event, chain.slot)
    for key, step in list(plan.waits_beyond(node, event.step)):
        if tries is None or tries > plan.studies[key[0]].max_restarts:
            awaiting.fail_trial(plan, plan.trial(key), step, error)
    _release(plan, chain)


def _restarts_used(node: Node, event: e.StageFailed, slot: str) -> int | None:
    """How many tries this error has cost by now; None when it is not to be tried again."""
    if event.signature is None:
        return None
    slots = node.failures.setdefault((event.step, event.signature), [])
    slots.append(slot)
    total = sum(len(slots) for slots in node.failures.values())
    return max(len(slots), total // MOST_FAILURES)


def _evaluated(plan: SearchPlan, event: e.Evaluated) -> None:
    node = plan.node(event.node)
    node.metrics[event.step] = event.metrics
    for trial in [plan.trial(key) for key in sorted(node.waiting.pop(event.step, ()))]:
        if event.step in trial.unevaluated:
            trial.unevaluated.discard(event.step)
            awaiting.settle(plan, trial)
        else:
            awaiting.answer(plan, trial, event.step)
    for study in [plan.studies[name] for name in plan.unheard if node.id in plan.studies[name].deepest]:
        _listen(plan, node, study, event)
    plan.touched.add(node.id)


def _listen(plan: SearchPlan, node: Node, study: Study, event: e.Evaluated) -> None:
    """The first evaluation on a study's way tells whether its metric is reported at all."""
    if study.spec.get("metric", "") in event.metrics:
        del plan.unheard[study.id]
        return
    problem = awaiting.problem_with(study, event.metrics, event.step)
    for key in sorted(set(plan.waiting_beyond(node, event.step - 1))):
        if key[0] == study.id:
            awaiting.end_trial(plan, plan.trial(key), TrialState.FAILED, problem)


def _kept(plan: SearchPlan, event: e.CheckpointKept) -> None:
    node = plan.node(event.node)
    _remove_checkpoint(plan, node, event.step)
    node.checkpoints[event.step] = Checkpoint(event.key, event.sha256, event.size, event.spare)
    plan.intermediate_bytes += event.size * event.spare
    node.saving.pop(event.step, None)
    awaiting.await_evaluation(plan, node, event.step)
    plan.touched.add(node.id)


def _dropped(plan: SearchPlan, event: e.CheckpointDropped) -> None:
    node = plan.node(event.node)
    checkpoint = node.checkpoints.get(event.step)
    if checkpoint is not None and checkpoint.key == event.key:
        _remove_checkpoint(plan, node, event.step)
        awaiting.leave_unevaluated(plan, node, event.step)
    if not event.key:
        _unsaved(plan, node, event)
    plan.touched.add(node.id)


def _remove_checkpoint(plan: SearchPlan, node: Node, step: int) -> None:
    checkpoint = node.checkpoints.pop(step, None)
    if checkpoint is not None:
        plan.intermediate_bytes -= checkpoint.size * checkpoint.intermediate


def _unsaved(plan: SearchPlan, node: Node, event: e.CheckpointDropped) -> None:
    """A checkpoint could not be written. Workers wait for their storage now: only logs of older versions say so."""
    node.saving.pop(event.step, None)  # the report may be here before the stage's own: then the chain's end clears it
    awaiting.leave_unevaluated(plan, node, event.step)
    node.unsaved[event.step] = node.unsaved.get(event.step, 0) + 1
    if node.unsaved[event.step] >= MAX_UNSAVED:
        error = {"kind": FailureKind.STORAGE, "step": event.step, "error": event.reason}
        branches = [plan.nodes[name] for name in node.children if plan.nodes[name].start == event.step]
        for key, step in [each for branch in branches for each in plan.waits_beyond(branch, event.step)]:
            awaiting.fail_trial(plan, plan.trial(key), step, error)
