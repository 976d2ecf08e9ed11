"""What trials wait for: results that they were asked for, and evaluations, also of steps that others train.

A result that comes, and one that never will, go into the study's history here; `app.domain.evolve` says when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from app.domain.search_plan import Node, SearchPlan, Study, Trial, TrialEvent
from app.domain.terms import NodeId, TrialEventKind, TrialState


def wait(plan: SearchPlan, node: Node, step: int, trial: Trial) -> None:
    """The trial waits for something at a step of a node."""
    node.waiting.setdefault(step, set()).add(trial.key)
    plan.touched.add(node.id)


def wait_for(plan: SearchPlan, trial: Trial, step: int) -> None:
    """The trial waits for the result of each of its runs at a step that has none yet."""
    for node in plan.nodes_of(trial, step):
        if step not in node.metrics:
            wait(plan, node, step, trial)


def waits_at(plan: SearchPlan, trial: Trial, step: int) -> bool:
    """Whether one of its runs has still to be measured there."""
    return any(trial.key in node.waiting.get(step, ()) for node in plan.nodes_of(trial, step))


def take(plan: SearchPlan, trial: Trial, step: int) -> None:
    """All that the trial waited for at a step is there."""
    if step in trial.unevaluated:
        trial.unevaluated.discard(step)
        settle(plan, trial)
    else:
        record_result(plan, trial, step)


def await_evaluations(plan: SearchPlan, study: Study, trial: Trial, before: int) -> None:
    """Steps past `before` on the trial's way were trained for others, and not evaluated: they are, if it is kept."""
    if not study.eval_every:
        return
    for name, end in plan.path_ends(trial):
        node = plan.nodes[name]
        if node.running:
            plan.touched.add(name)  # whoever trains there is to evaluate what is ahead
        for step in {*node.resumable, *node.saving} - node.metrics.keys():
            if max(before, node.start) < step <= end and step != trial.steps and is_evaluation_due(study, node, step):
                trial.unevaluated.add(step)
                wait(plan, node, step, trial)


def await_evaluation(plan: SearchPlan, node: Node, step: int) -> None:
    """A state is kept now at a step that was trained without being evaluated: the studies that want that have it.

    It costs a look at all their trials, which is seldom: most steps are evaluated before their state is kept.
    """
    if step in node.metrics or node.alone:
        return
    for study in plan.studies.values():
        if study.is_final or study.max_step_by_node.get(node.id, 0) < step or not is_evaluation_due(study, node, step):
            continue
        for trial in study.trials:
            goes_on = trial.state in (TrialState.ACTIVE, TrialState.COMPLETED)
            # for what it was asked, it waits in any case
            is_extra = trial.steps >= step and step not in trial.requested_steps
            if goes_on and is_extra and any(each is node for each in plan.nodes_of(trial, step)):
                study.active += trial.state != TrialState.ACTIVE
                trial.state = TrialState.ACTIVE
                trial.unevaluated.add(step)
                wait(plan, node, step, trial)


def is_evaluation_due(study: Study, node: Node, step: int) -> bool:
    """Whether a study's `eval_every` asks for an evaluation there, and that was not tried in vain too often."""
    return study.evaluates(step) and node.evaluation_tries(step) <= study.max_restarts


def record_result(plan: SearchPlan, trial: Trial, step: int) -> None:
    """The result that the trial waited for at `step` is there."""
    study = plan.studies[trial.study]
    if (problem := study.objectives.problem(plan.metrics(trial, step) or {}, step)) is not None:
        end_trial(plan, trial, TrialState.FAILED, problem)
        return
    study.num_results += 1
    line = TrialEvent(TrialEventKind.RESULT, trial.number, step, metrics=plan.metrics(trial, step) or {})
    _tell(study, trial, line)
    settle(plan, trial)


def settle(plan: SearchPlan, trial: Trial) -> None:
    """The trial is completed, if everything is there that it waits for."""
    if trial.state != TrialState.ACTIVE or trial.unevaluated:
        return
    if all(plan.metrics(trial, step) is not None for step in trial.requested_steps):
        trial.state = TrialState.COMPLETED
        plan.studies[trial.study].active -= 1


def drop_evaluations(plan: SearchPlan, node: Node, step: int) -> None:
    """There is no state to evaluate any more: nobody trains only for that."""
    for trial in [plan.trial(key) for key in sorted(node.waiting.get(step, ()))]:
        if step in trial.unevaluated and step not in node.checkpoints:
            drop_evaluation(plan, trial, step)


def drop_evaluation(plan: SearchPlan, trial: Trial, step: int) -> None:
    """The trial goes without this evaluation."""
    trial.unevaluated.discard(step)
    stop_waiting(plan, trial, step)
    settle(plan, trial)


_EVENT_OF = {
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
    """The trial is over: before it has what it was asked for, or before its tuner asked for more."""
    trial.error = error
    line = TrialEvent(_EVENT_OF[state], trial.number, trial.steps, reason=reason or error or {})
    _tell(plan.studies[trial.study], trial, line)
    if trial.state == TrialState.ACTIVE:
        plan.studies[trial.study].active -= 1
    trial.state = state
    if state == TrialState.FAILED:
        plan.studies[trial.study].failed.append(trial.number)
    waited, trial.unevaluated = {*trial.requested_steps, *trial.unevaluated}, set()
    for step in sorted(waited):
        stop_waiting(plan, trial, step)


def _tell(study: Study, trial: Trial, line: TrialEvent) -> None:
    """The tuner hears of it, unless it heard before that the trial has failed, and has gone on without it."""
    if not trial.is_retried:
        study.history.append(line)


def stop_waiting(plan: SearchPlan, trial: Trial, step: int) -> None:
    """The trial waits for nothing at a step any more, if it did."""
    for node in plan.nodes_of(trial, step):
        if trial.key in node.waiting.get(step, ()):
            node.waiting[step].discard(trial.key)
            if not node.waiting[step]:
                del node.waiting[step]
            plan.touched.add(node.id)


def fail_trial(plan: SearchPlan, trial: Trial, step: int, error: dict[str, Any]) -> None:
    """What the trial waits for at a step cannot be had. It fails once, wherever else it waits."""
    if step in trial.unevaluated:
        drop_evaluation(plan, trial, step)
    elif trial.state == TrialState.ACTIVE:
        end_trial(plan, trial, TrialState.FAILED, error)


class StepRange(Protocol):
    """Of a node, the steps (start, end]."""

    @property
    def node(self) -> NodeId: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def evaluations(plan: SearchPlan, node: Node, start: int, end: int) -> list[int]:
    """The steps in (start, end], or just `start` when they are equal, after which to evaluate.

    Those are the steps that trials wait for, and every `eval_every` of the running studies that pass here; what has
    been evaluated already is not evaluated again, nor what a study has tried in vain as often as it may.
    """
    due = {step for step in node.waiting if start < step <= end or start == step == end}
    for study in plan.studies.values():
        if study.is_running and node.id in study.max_step_by_node:
            steps = _regular(study, start, min(end, study.max_step_by_node[node.id]))
            due.update(step for step in steps if node.evaluation_tries(step) <= study.max_restarts)
    return sorted(step for step in due if step not in node.metrics)


def evaluations_of_each(plan: SearchPlan, parts: Sequence[StepRange]) -> Iterator[list[int]]:
    """The evaluations of each of some parts that follow each other. A node with many of them is looked at once."""
    for name, group in groupby(parts, key=attrgetter("node")):
        node, inside = plan.nodes[name], list(group)
        steps = evaluations(plan, node, inside[0].start, inside[-1].end)
        for part in inside:
            if part.start == part.end:
                yield evaluations(plan, node, part.start, part.end)
            else:
                yield steps[bisect_right(steps, part.start) : bisect_right(steps, part.end)]


def _regular(study: Study, start: int, end: int) -> Iterable[int]:
    every = study.eval_every
    return range(start + every - start % every, end + 1, every) if every else ()
