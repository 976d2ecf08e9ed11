"""Events of metrics, checkpoints and comparisons.

Some checkpoints can verify that the trainer is exact: their steps can be trained again from another state than the
first time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import replace

from app.domain import events as e
from app.domain import outstanding_requests, targets
from app.domain.objectives import metric_problem
from app.domain.search_plan import (
    CachedState,
    Chain,
    Checkpoint,
    Node,
    PlacedCheckpoint,
    SearchPlan,
    Study,
    Witness,
)
from app.domain.terms import TrialState, VerificationKind, digest

MOST_WITNESSES = 8
"""The cheapest witnesses to keep of each resumption. One is enough, but states of some will be deleted."""


def training_chain(plan: SearchPlan, node: Node, step: int) -> Chain | None:
    """The chain that trains the node at this step; None if none is recorded."""
    if (name := node.saving.get(step)) is not None:
        return plan.chains.get(name)
    training = (chain for chain in plan.chains.values() if chain.proof is None)
    for chain in training:
        # completed stages count as well: a state inside one may be stored after its end is recorded
        if any(stage.node == node.id and stage.start < step <= stage.end for stage in chain.stages):
            return chain
    return None


def _record_comparison(plan: SearchPlan, test: e.ExactnessTested) -> None:
    """If both states were equal, record the resumptions that only one of the two trainings had as verified.

    Equal metrics without a state prove nothing about later steps.
    """
    if test.proof in (VerificationKind.CHECK, VerificationKind.EVALUATION) or test.difference or test.unproven:
        return
    if test.node not in plan.nodes or test.step not in plan.nodes[test.node].checkpoints:
        return
    path = plan.path_to(test.node, test.step)
    steps = {step for node, _ in path for step in node.resumed if test.begin < step < test.step} | {test.since}
    for step in {test.begin} if test.begin > test.since else steps - {0}:
        plan.compared[step] = plan.compared.get(step, frozenset()) | plan.resumption(test.node, test.step, step).values


def _record_witness(plan: SearchPlan, node: Node, step: int) -> None:
    """Record the comparisons that the state at `step` allows: a second training can reach it from another state."""
    began = node.checkpoints[step].since
    if began is None or node.is_isolated or node.id not in plan.nodes or node.id in plan.means:
        return
    draw = int(digest(node.id, step)[:8], 16) / 2**32
    for begin in _start_steps(plan, node, step, began):
        witness = Witness(step - begin, node.id, step, began, begin, draw)
        insort(alike := plan.witnesses.setdefault(witness.resumption, []), witness)
        del alike[MOST_WITNESSES:]
    if began > 0 and draw < max((study.spec.audit for study in plan.studies.values() if study.is_running), default=0.0):
        again = _latest_state(plan, node, began, 0) or 0
        plan.audits.append(Witness(step - again, node.id, step, began, again, draw))


MOST_START_STEPS = 3
"""The limit of earlier states of a chain from which a comparison of a kept state may begin."""


def _start_steps(plan: SearchPlan, node: Node, step: int, began: int) -> Iterator[int]:
    """The steps where a second training can begin: at states that the first one passed, or before its first state."""
    inside = _latest_state(plan, node, step, began)
    if inside is None:
        yield from [_latest_state(plan, node, began, 0) or 0] if began else []
    for _ in range(MOST_START_STEPS):
        if inside is not None:
            yield inside
            inside = _latest_state(plan, node, inside, began)


def _latest_state(plan: SearchPlan, node: Node, before: int, after: int) -> int | None:
    """The last step between `after` and `before` with a saved state on the path to the node."""
    here: Node | None = node
    while here is not None:
        last = max((at for at in here.checkpoints if after < at < before), default=None)
        if last is not None:
            return last
        if here.start <= after:
            return None
        before, here = min(before, here.start + 1), plan.nodes[here.parent] if here.parent is not None else None
    return None


def record_metrics(plan: SearchPlan, event: e.Evaluated) -> None:
    """Record an evaluation, and the results of the trials that waited for it."""
    node = plan.node(event.node)
    node.metrics[event.step] = event.metrics
    plan.progress_version += 1
    node.evaluations_given_up.pop(event.step, None)
    if node.evaluation_failures:
        left = {place: slots for place, slots in node.evaluation_failures.items() if place[0] != event.step}
        node.evaluation_failures = left
    for trial in [plan.trial(key) for key in sorted(node.waiting.pop(event.step, ()))]:
        if not outstanding_requests.is_waiting_at(plan, trial, event.step):  # not for another repeat
            outstanding_requests.finish_waiting(plan, trial, event.step)
    targets.note_evaluation(plan, node, event.step)
    for study in [plan.studies[name] for name in plan.metric_unseen if node.id in plan.studies[name].max_step_by_node]:
        _check_reported_metrics(plan, node, study, event)
    plan.touched.add(node.id)


def _check_reported_metrics(plan: SearchPlan, node: Node, study: Study, event: e.Evaluated) -> None:
    """Fail the waiting trials of a study if its first evaluation lacks one of its metrics."""
    missing = next((name for name in study.spec.objectives.metrics if name not in event.metrics), None)
    if missing is None:
        del plan.metric_unseen[study.id]
        return
    problem = metric_problem(missing, event.metrics, event.step)
    for key in sorted({key for key, _ in plan.trials_waiting_after(node, event.step - 1)}):
        if key[0] == study.id:
            outstanding_requests.end_trial(plan, plan.trial(key), TrialState.FAILED, problem)


def record_exactness(plan: SearchPlan, event: e.ExactnessLost | e.ExactnessTested) -> None:
    """Record that a stage is inexact, or that it was compared."""
    if isinstance(event, e.ExactnessTested):
        plan.tests.append(event)
        _record_comparison(plan, event)
        if event.difference and event.proof != VerificationKind.CHECK:  # a check compares no recorded steps
            plan.node(event.node).not_exact[event.step, TRAINED_TWICE] = None
    else:
        plan.node(event.node).not_exact[event.step, event.reason] = None


TRAINED_TWICE = "ended with other bits when trained again"
"""The reason for a node with two different states of one step."""


def record_checkpoint(plan: SearchPlan, event: e.CheckpointKept | e.CheckpointCached) -> None:
    """Record a stored state, or a state that one host can use while it is uploaded."""
    node = plan.node(event.node)
    chain = training_chain(plan, node, event.step)
    since = None if chain is None else chain.stages[0].start
    checkpoint = Checkpoint(event.key, event.sha256, event.size, since=since, parts=event.parts)
    if isinstance(event, e.CheckpointKept):
        _keep(plan, node, event, replace(checkpoint, intermediate=event.intermediate, looked=event.looked))
    elif event.step in node.saving:  # else it is stored already, or lost
        node.cached[event.step] = CachedState(checkpoint, event.host)
    plan.touched.add(node.id)


def _keep(plan: SearchPlan, node: Node, event: e.CheckpointKept, checkpoint: Checkpoint) -> None:
    before = node.checkpoints.get(event.step)
    if before is not None and before.key != event.key:
        if _are_comparable(before, checkpoint) and before.sha256 != event.sha256:
            node.not_exact[event.step, TRAINED_TWICE] = None
        _withdraw(plan, node, event.step)  # two workers stored the state: one is enough
    _remove_checkpoint(plan, node, event.step)
    node.checkpoints[event.step] = checkpoint
    plan.progress_version += 1
    plan.intermediate_bytes += event.size * event.intermediate
    plan.kept_bytes += event.size
    node.saving.pop(event.step, None)
    node.cached.pop(event.step, None)
    outstanding_requests.await_evaluation_of_state(plan, node, event.step)
    _record_witness(plan, node, event.step)


def _are_comparable(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether equal states have equal hashes: not if divided differently, or with other attributes, such as a clock."""
    return len(one.parts) == len(other.parts) and not (one.looked or other.looked)


def release_checkpoint(plan: SearchPlan, event: e.CheckpointReleased) -> None:
    """Withdraw a state that is no longer needed."""
    node = plan.node(event.node)
    checkpoint = node.checkpoints.get(event.step)
    if checkpoint is not None and checkpoint.key == event.key:
        _withdraw(plan, node, event.step)
        outstanding_requests.drop_evaluations(plan, node, event.step)
    plan.touched.add(node.id)


def _withdraw(plan: SearchPlan, node: Node, step: int) -> None:
    """Remove a checkpoint whose object must still be deleted."""
    checkpoint = node.checkpoints[step]
    plan.released[checkpoint.key] = PlacedCheckpoint(node.id, step, checkpoint)
    _remove_checkpoint(plan, node, step)


def drop_checkpoint(plan: SearchPlan, event: e.CheckpointDropped) -> None:
    """Remove a checkpoint whose object is deleted or unreadable."""
    plan.released.pop(event.key, None)
    node = plan.node(event.node)
    checkpoint = node.checkpoints.get(event.step)
    if checkpoint is not None and checkpoint.key == event.key:
        _remove_checkpoint(plan, node, event.step)
        outstanding_requests.drop_evaluations(plan, node, event.step)
    plan.touched.add(node.id)


def _remove_checkpoint(plan: SearchPlan, node: Node, step: int) -> None:
    checkpoint = node.checkpoints.pop(step, None)
    if checkpoint is not None:
        plan.progress_version += 1
        plan.intermediate_bytes -= checkpoint.size * checkpoint.intermediate
        plan.kept_bytes -= checkpoint.size
