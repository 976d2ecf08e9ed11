"""Training leaves behind metrics and checkpoints, some of which can prove that the trainer is exact.

These are states whose steps may be trained again in another way than the first time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import replace

from app.domain import events as e
from app.domain import outstanding_requests
from app.domain.objectives import problem_of
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
"""Of each resumption, the cheapest that are noted: one is enough, but some of their states will be deleted."""


def chain_training(plan: SearchPlan, node: Node, step: int) -> Chain | None:
    """The chain that comes by there; None where none is on record."""
    if (name := node.saving.get(step)) is not None:
        return plan.chains.get(name)
    training = (chain for chain in plan.chains.values() if chain.proof is None)
    return next((chain for chain in training if _passes(chain, node, step)), None)


def _passes(chain: Chain, node: Node, step: int) -> bool:
    """Also where its stage is over: a state inside it may be stored after that is on record."""
    return any(stage.node == node.id and stage.start < step <= stage.end for stage in chain.stages)


def _take_comparison(plan: SearchPlan, test: e.ExactnessTested) -> None:
    """Equal states show that the resumptions which one of the two trainings had, and the other had not, change nothing.

    Where only metrics were equal, since no state is kept, they say nothing of the steps that follow.
    """
    if test.proof in (VerificationKind.CHECK, VerificationKind.EVALUATION) or test.difference or test.unproven:
        return
    if test.node not in plan.nodes or test.step not in plan.nodes[test.node].checkpoints:
        return
    way = plan.path_to(test.node, test.step)
    steps = {step for node, _ in way for step in node.resumed if test.begin < step < test.step} | {test.since}
    for step in {test.begin} if test.begin > test.since else steps - {0}:
        plan.compared[step] = plan.compared.get(step, frozenset()) | plan.resumption(test.node, test.step, step).values


def _note_witness(plan: SearchPlan, node: Node, step: int) -> None:
    """A state is kept there, which a second training may reach from elsewhere than the first did."""
    began = node.checkpoints[step].since
    if began is None or node.alone or node.id not in plan.nodes or node.id in plan.means:
        return
    draw = int(digest(node.id, step)[:8], 16) / 2**32
    for begin in _beginnings(plan, node, step, began):
        witness = Witness(step - begin, node.id, step, began, begin, draw)
        insort(alike := plan.witnesses.setdefault(witness.resumption, []), witness)
        del alike[MOST_WITNESSES:]
    if began > 0 and draw < max((study.audit for study in plan.studies.values() if study.is_running), default=0.0):
        again = _latest(plan, node, began, 0) or 0
        plan.audits.append(Witness(step - again, node.id, step, began, again, draw))


MOST_BEGINNINGS = 3
"""The limit of earlier states of a chain from which a comparison of a kept state may begin."""


def _beginnings(plan: SearchPlan, node: Node, step: int, began: int) -> Iterator[int]:
    """Where a second training can begin: with states that the first one passed; or from before that which it loaded."""
    inside = _latest(plan, node, step, began)
    if inside is None:
        yield from [_latest(plan, node, began, 0) or 0] if began else []
    for _ in range(MOST_BEGINNINGS):
        if inside is not None:
            yield inside
            inside = _latest(plan, node, inside, began)


def _latest(plan: SearchPlan, node: Node, before: int, after: int) -> int | None:
    """The last step between these two at which a state is kept on the way to the node."""
    here: Node | None = node
    while here is not None:
        last = max((at for at in here.checkpoints if after < at < before), default=None)
        if last is not None:
            return last
        if here.start <= after:
            return None
        before, here = min(before, here.start + 1), plan.nodes[here.parent] if here.parent is not None else None
    return None


def take_metrics(plan: SearchPlan, event: e.Evaluated) -> None:
    """A node was evaluated: whoever waited for that has a result."""
    node = plan.node(event.node)
    node.metrics[event.step] = event.metrics
    node.evaluations_given_up.pop(event.step, None)
    if node.evaluation_failures:
        left = {place: slots for place, slots in node.evaluation_failures.items() if place[0] != event.step}
        node.evaluation_failures = left
    for trial in [plan.trial(key) for key in sorted(node.waiting.pop(event.step, ()))]:
        if not outstanding_requests.waits_at(plan, trial, event.step):  # for another of its repeats
            outstanding_requests.take(plan, trial, event.step)
    for study in [plan.studies[name] for name in plan.metric_unseen if node.id in plan.studies[name].max_step_by_node]:
        _check_reported_metrics(plan, node, study, event)
    plan.touched.add(node.id)


def _check_reported_metrics(plan: SearchPlan, node: Node, study: Study, event: e.Evaluated) -> None:
    """The first evaluation on a study's way tells whether its metrics are reported at all."""
    missing = next((name for name in study.objectives.metrics if name not in event.metrics), None)
    if missing is None:
        del plan.metric_unseen[study.id]
        return
    problem = problem_of(missing, event.metrics, event.step)
    for key in sorted(set(plan.trials_waiting_after(node, event.step - 1))):
        if key[0] == study.id:
            outstanding_requests.end_trial(plan, plan.trial(key), TrialState.FAILED, problem)


def take_exactness(plan: SearchPlan, event: e.ExactnessLost | e.ExactnessTested) -> None:
    """A stage may differ from a training alone, or was compared with one."""
    if isinstance(event, e.ExactnessTested):
        plan.tests.append(event)
        _take_comparison(plan, event)
        if event.difference and event.proof != VerificationKind.CHECK:  # which compares nothing that is on record
            plan.node(event.node).not_exact[event.step, TRAINED_TWICE] = None
    else:
        plan.node(event.node).not_exact[event.step, event.reason] = None


TRAINED_TWICE = "ended with other bits when trained again"
"""Why a node may be wrong of which two states of one step are on record, or were compared."""


def take_checkpoint(plan: SearchPlan, event: e.CheckpointKept | e.CheckpointCached) -> None:
    """A state is kept from here on; or is on its way, and can be begun with on one host until then."""
    node = plan.node(event.node)
    chain = chain_training(plan, node, event.step)
    since = None if chain is None else chain.stages[0].start
    checkpoint = Checkpoint(event.key, event.sha256, event.size, since=since, parts=event.parts)
    if isinstance(event, e.CheckpointKept):
        _keep(plan, node, event, replace(checkpoint, intermediate=event.intermediate, looked=event.looked))
    elif event.step in node.saving:  # else it is kept already, or lost
        node.cached[event.step] = CachedState(checkpoint, event.host)
    plan.touched.add(node.id)


def _keep(plan: SearchPlan, node: Node, event: e.CheckpointKept, checkpoint: Checkpoint) -> None:
    before = node.checkpoints.get(event.step)
    if before is not None and before.key != event.key:
        if _must_be_equal(before, checkpoint) and before.sha256 != event.sha256:
            node.not_exact[event.step, TRAINED_TWICE] = None
        _withdraw(plan, node, event.step)  # two workers were here: one state is enough
    _remove_checkpoint(plan, node, event.step)
    node.checkpoints[event.step] = checkpoint
    plan.intermediate_bytes += event.size * event.intermediate
    plan.kept_bytes += event.size
    node.saving.pop(event.step, None)
    node.cached.pop(event.step, None)
    outstanding_requests.await_evaluation(plan, node, event.step)
    _note_witness(plan, node, event.step)


def _must_be_equal(one: Checkpoint, other: Checkpoint) -> bool:
    """Not so where they are divided otherwise, or hold what the trainer held besides, such as a clock."""
    return len(one.parts) == len(other.parts) and not (one.looked or other.looked)


def release_checkpoint(plan: SearchPlan, event: e.CheckpointReleased) -> None:
    """Nothing begins with a state any more."""
    node = plan.node(event.node)
    checkpoint = node.checkpoints.get(event.step)
    if checkpoint is not None and checkpoint.key == event.key:
        _withdraw(plan, node, event.step)
        outstanding_requests.drop_evaluations(plan, node, event.step)
    plan.touched.add(node.id)


def _withdraw(plan: SearchPlan, node: Node, step: int) -> None:
    """Its object is still there, and must be deleted."""
    checkpoint = node.checkpoints[step]
    plan.released[checkpoint.key] = PlacedCheckpoint(node.id, step, checkpoint)
    _remove_checkpoint(plan, node, step)


def drop_checkpoint(plan: SearchPlan, event: e.CheckpointDropped) -> None:
    """A state is kept no longer."""
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
        plan.intermediate_bytes -= checkpoint.size * checkpoint.intermediate
        plan.kept_bytes -= checkpoint.size
