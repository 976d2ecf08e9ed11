"""The results and evaluations that trials wait for, also at steps that other trials train.

A result, or the failure to get one, is added to the study's history here. `app.domain.evolve` calls these functions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from app.domain.search_plan import Node, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import NodeId, TrialEventKind, TrialState


def add_waiting(plan: SearchPlan, node: Node, step: int, trial: Trial) -> None:
    """Let the trial wait for a result or an evaluation at a step of a node."""
    node.waiting.setdefault(step, set()).add(trial.key)
    plan.touched.add(node.id)


def await_result(plan: SearchPlan, trial: Trial, step: int) -> None:
    """Let the trial wait for the missing results of its runs at a step."""
    for node in plan.nodes_of(trial, step):
        if step not in node.metrics:
            add_waiting(plan, node, step, trial)


def is_waiting_at(plan: SearchPlan, trial: Trial, step: int) -> bool:
    """Whether one of the trial's runs is not evaluated there yet."""
    return any(trial.key in node.waiting.get(step, ()) for node in plan.nodes_of(trial, step))


def finish_waiting(plan: SearchPlan, trial: Trial, step: int) -> None:
    """Take the results or evaluations of all the trial's runs at a step."""
    if step in trial.unevaluated:
        trial.unevaluated.discard(step)
        complete_if_done(plan, trial)
    else:
        record_result(plan, trial, step)


def await_evaluations(plan: SearchPlan, study: Study, trial: Trial, before: int) -> None:
    """Let the trial wait for evaluations of saved states beyond `before` that other trials left without one."""
    if not study.spec.eval_every:
        return
    for name, end in plan.path_ends(trial):
        node = plan.nodes[name]
        if node.running:
            plan.touched.add(name)  # the chain that trains there must evaluate later steps
        for step in {*node.resumable, *node.saving} - node.metrics.keys():
            if max(before, node.start) < step <= end and step != trial.steps and is_evaluation_due(study, node, step):
                trial.unevaluated.add(step)
                add_waiting(plan, node, step, trial)


def await_evaluation_of_state(plan: SearchPlan, node: Node, step: int) -> None:
    """Let trials wait for the evaluation of a state that was saved without one, if their `eval_every` requests it.

    This loops over all trials of these studies. It is rare: most steps are evaluated before their state is saved.
    """
    if step in node.metrics or node.is_isolated:
        return
    for study in plan.studies.values():
        if study.is_final or study.max_step_by_node.get(node.id, 0) < step or not is_evaluation_due(study, node, step):
            continue
        for trial in study.trials:
            may_wait = trial.state in (TrialState.ACTIVE, TrialState.COMPLETED)
            is_extra = trial.steps >= step and step not in trial.requested_steps  # the trial waits at the latter anyway
            if may_wait and is_extra and any(each is node for each in plan.nodes_of(trial, step)):
                study.active += trial.state != TrialState.ACTIVE
                trial.state = TrialState.ACTIVE
                trial.unevaluated.add(step)
                add_waiting(plan, node, step, trial)


def is_evaluation_due(study: Study, node: Node, step: int) -> bool:
    """Whether `eval_every` requests an evaluation at a step, and restarts are left for it."""
    return study.spec.evaluates(step) and node.evaluation_tries(step) <= study.spec.max_restarts


def record_result(plan: SearchPlan, trial: Trial, step: int) -> None:
    """Record the trial's result at `step`, or fail the trial if the metrics are not a result."""
    study = plan.studies[trial.study]
    if (problem := study.spec.objectives.problem(plan.metrics(trial, step) or {}, step)) is not None:
        end_trial(plan, trial, TrialState.FAILED, problem)
        return
    study.num_results += 1
    line = TrialEvent(TrialEventKind.RESULT, trial.number, step, metrics=plan.metrics(trial, step) or {})
    _add_to_history(study, trial, line)
    complete_if_done(plan, trial)


def complete_if_done(plan: SearchPlan, trial: Trial) -> None:
    """Complete the trial if it has all results and evaluations."""
    if trial.state != TrialState.ACTIVE or trial.unevaluated:
        return
    if all(plan.metrics(trial, step) is not None for step in trial.requested_steps):
        trial.state = TrialState.COMPLETED
        plan.studies[trial.study].active -= 1


def drop_evaluations(plan: SearchPlan, node: Node, step: int) -> None:
    """Drop the evaluations of a state that is gone: no chain trains only for an evaluation."""
    for trial in [plan.trial(key) for key in sorted(node.waiting.get(step, ()))]:
        if step in trial.unevaluated and step not in node.checkpoints:
            drop_evaluation(plan, trial, step)


def drop_evaluation(plan: SearchPlan, trial: Trial, step: int) -> None:
    """Let the trial no longer wait for this evaluation."""
    trial.unevaluated.discard(step)
    stop_waiting(plan, trial, step)
    complete_if_done(plan, trial)


_EVENT_KINDS = {
    TrialState.STOPPED: TrialEventKind.STOP,
    TrialState.FAILED: TrialEventKind.FAIL,
    TrialState.CANCELLED: TrialEventKind.CANCEL,
}


def end_trial(
    plan: SearchPlan,
    trial: Trial,
    state: TrialState,
    error: dict[str, Any] | None = None,
    reason: Mapping[str, Any] | None = None,
) -> None:
    """End a trial as stopped, failed or cancelled."""
    trial.error = error
    line = TrialEvent(_EVENT_KINDS[state], trial.number, trial.steps, reason=reason or error or {})
    _add_to_history(plan.studies[trial.study], trial, line)
    if trial.state == TrialState.ACTIVE:
        plan.studies[trial.study].active -= 1
    trial.state = state
    plan.studies[trial.study].unmerged.pop(trial.number, None)
    if state == TrialState.FAILED:
        plan.studies[trial.study].failed.append(trial.number)
    waited, trial.unevaluated = {*trial.requested_steps, *trial.unevaluated}, set()
    for step in sorted(waited):
        stop_waiting(plan, trial, step)


def _add_to_history(study: Study, trial: Trial, line: TrialEvent) -> None:
    """Add a line to the history, unless the trial is retried: its tuner has continued without it."""
    if not trial.is_retried:
        study.history.append(line)


def stop_waiting(plan: SearchPlan, trial: Trial, step: int) -> None:
    """Let the trial wait for nothing at a step."""
    for node in plan.nodes_of(trial, step):
        if trial.key in node.waiting.get(step, ()):
            node.waiting[step].discard(trial.key)
            if not node.waiting[step]:
                del node.waiting[step]
            plan.touched.add(node.id)


def fail_trial(plan: SearchPlan, trial: Trial, step: int, error: dict[str, Any]) -> None:
    """Fail an active trial because its result at a step failed, or drop a failed evaluation."""
    if step in trial.unevaluated:
        drop_evaluation(plan, trial, step)
    elif trial.state == TrialState.ACTIVE:
        end_trial(plan, trial, TrialState.FAILED, error)


class StepRange(Protocol):
    """The steps (start, end] of a node."""

    @property
    def node(self) -> NodeId: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def evaluations(plan: SearchPlan, node: Node, start: int, end: int) -> list[int]:
    """The steps in (start, end] after which to evaluate; `start` alone if it equals `end`.

    These are the steps that trials wait for, and the multiples of `eval_every` of running studies that pass the node,
    except steps that are evaluated already or have used up a study's restarts.
    """
    due = {step for step in node.waiting if start < step <= end or start == step == end}
    for study in plan.studies.values():
        if study.is_running and node.id in study.max_step_by_node:
            steps = _regular_evaluations(study, start, min(end, study.max_step_by_node[node.id]))
            due.update(step for step in steps if node.evaluation_tries(step) <= study.spec.max_restarts)
    return sorted(step for step in due if step not in node.metrics)


def evaluations_by_part(plan: SearchPlan, parts: Sequence[StepRange]) -> Iterator[list[int]]:
    """The evaluations of each of several consecutive parts, computed once for each node."""
    for name, group in groupby(parts, key=attrgetter("node")):
        node, inside = plan.nodes[name], list(group)
        steps = evaluations(plan, node, inside[0].start, inside[-1].end)
        for part in inside:
            if part.start == part.end:
                yield evaluations(plan, node, part.start, part.end)
            else:
                yield steps[bisect_right(steps, part.start) : bisect_right(steps, part.end)]


def _regular_evaluations(study: Study, start: int, end: int) -> Iterable[int]:
    every = study.spec.eval_every
    return range(start + every - start % every, end + 1, every) if every else ()
