"""A chain is assigned; its stages are completed or fail; it ends."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import awaiting
from app.domain import events as e
from app.domain.ids import TrialKey
from app.domain.search_plan import MOST_FAILURES, Chain, Node, SearchPlan
from app.domain.states import ChainOutcome


def assign(plan: SearchPlan, event: e.ChainAssigned) -> None:
    """A slot is to run these stages."""
    plan.chains[event.chain] = Chain(event.chain, event.slot, event.stages, event.at, proof=event.proof)
    if event.proof is not None:
        return
    plan.measurements += plan.packing is None
    for index, stage in enumerate(event.stages):
        node = plan.node(stage.node)
        node.running[event.chain, index] = (stage.start, stage.end)
        node.resumed_from = max(node.resumed_from, event.stages[0].start)
        plan.touched.add(stage.node)


def complete(plan: SearchPlan, event: e.StageCompleted) -> None:
    """A stage was trained to its end; its checkpoint is being written."""
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


def close(plan: SearchPlan, event: e.ChainEnded) -> None:
    """A chain is over, whether it was trained or not."""
    chain = plan.chains[event.chain]
    if chain.proof is not None:
        _charge_proof(plan, chain, event)
    elif not chain.is_trained:
        stage = chain.stages[chain.index]
        _charge(plan, stage, event.steps, event.seconds)
        if event.outcome == ChainOutcome.LOST:
            lost = plan.node(stage.node).lost
            lost[stage.start] = lost.get(stage.start, 0) + 1
    _release(plan, chain)


def _charge_proof(plan: SearchPlan, chain: Chain, event: e.ChainEnded) -> None:
    """What was trained again to compare is paid for, and is no progress."""
    study = plan.studies[chain.stages[0].study]
    study.proof_steps += event.steps
    study.gpu_seconds += event.seconds
    if chain.proof is not None and event.outcome not in (ChainOutcome.DONE, ChainOutcome.STOPPED):
        plan.proofs_in_vain[chain.proof] = plan.proofs_in_vain.get(chain.proof, 0) + 1


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


def fail(plan: SearchPlan, event: e.StageFailed) -> None:
    """The user's code failed: the stage is tried again, and the trials that have no restart left fail."""
    chain = plan.chains[event.chain]
    if chain.proof is not None:
        plan.check_error = {"kind": event.kind, "step": event.step, "error": event.error}
        del plan.chains[chain.id]
        return
    stage = chain.stages[event.index]
    node = plan.node(stage.node)
    _charge(plan, stage, max(event.step - stage.start, 0), event.seconds)
    error = {"kind": event.kind, "step": event.step, "error": event.error}
    used = _restarts_used(node, event, chain.slot)
    for key, step in list(_concerned(plan, node, event)):
        if used is None or used > plan.studies[key[0]].max_restarts:
            awaiting.fail_trial(plan, plan.trial(key), step, error)
    _release(plan, chain)


def _concerned(plan: SearchPlan, node: Node, event: e.StageFailed) -> Iterator[tuple[TrialKey, int]]:
    """The trials that cannot go on, each with a step that it waits for.

    An evaluation that fails stops those who asked for it: for a result of this step, or for one every so many steps.
    """
    for key, step in plan.waits_beyond(node, event.step):
        if event.evaluated is None or step == event.evaluated or plan.studies[key[0]].evaluates(event.evaluated):
            yield key, step


def _restarts_used(node: Node, event: e.StageFailed, slot: str) -> int | None:
    """How many tries this error has cost by now; None when it is not to be tried again."""
    if event.evaluated is not None:
        node.evaluation_failures.setdefault((event.evaluated, event.signature or ""), []).append(slot)
        return node.evaluation_tries(event.evaluated)
    if event.signature is None:
        return None
    slots = node.failures.setdefault((event.step, event.signature), [])
    slots.append(slot)
    return max(len(slots), sum(map(len, node.failures.values())) // MOST_FAILURES)
