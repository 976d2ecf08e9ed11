"""Events of chains: assigned, completed stages, failures, and the end."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import events as e
from app.domain import outstanding_requests
from app.domain.failures import count_tries, counts_for_other_trials, error_location
from app.domain.search_plan import MOST_FAILURES, Chain, FinalFailure, Node, SearchPlan, Study
from app.domain.slots import gpu_of
from app.domain.terms import ChainOutcome, FailureKind, TrialKey


def assign(plan: SearchPlan, event: e.ChainAssigned) -> None:
    """Record a new chain."""
    chain = Chain(
        event.chain,
        event.slot,
        event.stages,
        event.at,
        proof=event.proof,
        members=event.members,
        kind=event.kind,
    )
    plan.chains.begin(chain)
    plan.slots.add(event.slot)
    if event.proof is not None:
        return
    plan.measurements += plan.packing is None
    if gpu := gpu_of(event.kind):
        plan.gpus.add(gpu)
    for index, stage in enumerate(event.stages):
        node = plan.node(stage.node)
        node.running[event.chain, index] = (stage.start, stage.end)
        node.gpu = gpu or node.gpu
        plan.touched.add(stage.node)
    _record_resumption(plan, event.stages)


def _record_resumption(plan: SearchPlan, stages: tuple[e.Stage, ...]) -> None:
    """If a chain begins with a saved state, record that its resumption must be compared. Means cannot be compared."""
    begin, last = stages[0].start, stages[-1]
    if not begin or last.node not in plan.nodes or plan.ancestry(last.node)[0].start == begin:
        return
    for stage in stages:
        node = plan.nodes[stage.node]
        node.resumed[begin] = node.resumed.get(begin, False) or stage.end == begin
    plan.resumptions[plan.resumption(last.node, last.end, begin)] = None


def complete(plan: SearchPlan, event: e.StageCompleted) -> None:
    """Record a completed stage whose checkpoint is being written."""
    chain = plan.chains[event.chain]
    stage = chain.stages[event.index]
    plan.chains.move_on(chain, event.index + 1)
    chain.seconds += event.seconds
    node = plan.node(stage.node)
    node.running.pop((chain.id, event.index), None)
    if stage.end not in node.checkpoints:
        node.saving[stage.end] = chain.id
    _charge(plan, chain, stage, stage.end - stage.start, event.seconds)
    _record_pace(plan.studies[stage.study], chain, event)
    if event.peak_bytes and not chain.members:
        where = (gpu_of(chain.kind), stage.start, stage.end)
        node.peaks[where] = max(event.peak_bytes, node.peaks.get(where, 0))
    if event.shared_process:
        plan.shared.add(node.id)
    node.trained = max(node.trained, stage.end)
    node.lost.pop(stage.start, None)
    node.failures = {place: slots for place, slots in node.failures.items() if place[0] >= stage.end}
    plan.touched.add(node.id)


LONG_STAGE = 60.0
"""Seconds. In stages of at least this length, the start of the process is a small part."""


def _record_pace(study: Study, chain: Chain, event: e.StageCompleted) -> None:
    """Add the stage to the study's pace, unless most of its time may be the start of the slot's first process."""
    stage = chain.stages[event.index]
    if event.index > 0 or chain.slot in study.used_slots or event.seconds >= LONG_STAGE:
        study.paced_steps += stage.end - stage.start
        study.paced_seconds += event.seconds * chain.ranks
    study.used_slots.add(chain.slot)


def _record_kept(node: Node, stage: e.Stage, steps: int) -> None:
    """Record an interrupted stage up to its last checkpoint. steps: the ones that were run."""
    kept = max((at for at in node.checkpoints if at <= stage.start + steps), default=stage.start)
    node.trained = max(node.trained, kept)


def _charge(plan: SearchPlan, chain: Chain, stage: e.Stage, steps: int, seconds: float) -> None:
    """Charge a stage to its study. steps: the ones that were run. seconds: on each of the chain's slots."""
    node, study = plan.node(stage.node), plan.studies[stage.study]
    study.executed += steps
    if node.id in plan.nodes:
        _count_repeated_steps(node, study, stage.start, stage.start + steps)
    node.reached = max(node.reached, stage.start + steps)
    plan.progress_version += 1
    study.gpu_seconds += seconds * chain.ranks
    if steps and not node.steps_run and node.id in plan.nodes:
        plan.measured.append(node.id)
    plan.stages_run += 1
    if steps:
        node.add_timing(gpu_of(chain.kind), steps, seconds * plan.speedup_of(chain.kind, chain.ranks))
    if steps and chain.members:
        before = node.paces.get((chain.kind, chain.ranks), (0, 0.0))
        node.paces[chain.kind, chain.ranks] = (before[0] + steps, before[1] + seconds)


def _count_repeated_steps(node: Node, study: Study, start: int, end: int) -> None:
    """Classify the steps (start, end]: trained for the first time, retried after an error, or lost with a worker.

    The remaining steps are recorded ones, repeated because no state was kept where this stage had to begin.
    """
    study.first += max(0, end - max(start, node.reached))
    lost = (max(start, node.trained), min(end, node.reached))
    retried = max(0, min(lost[1], node.failed_at) - lost[0])
    study.retried += retried
    study.lost += max(0, lost[1] - lost[0]) - retried


def close(plan: SearchPlan, event: e.ChainEnded) -> None:
    """End a chain, trained or not."""
    chain = plan.chains[event.chain]
    if chain.proof is not None:
        _charge_verification(plan, chain, event)
    elif not chain.is_trained:
        stage = chain.stages[chain.index]
        _charge(plan, chain, stage, event.steps, event.seconds)
        _record_kept(plan.node(stage.node), stage, event.steps)
        if event.died_alone:
            lost = plan.node(stage.node).lost
            lost[stage.start] = lost.get(stage.start, 0) + 1
    if event.outcome not in (ChainOutcome.DONE, ChainOutcome.STOPPED):
        _drop_cached_start(plan, chain)
    _release(plan, chain)


def _drop_cached_start(plan: SearchPlan, chain: Chain) -> None:
    """Forget the cached state that a failed chain began with: it may be missing on its host.

    Other chains wait until the state is in the store.
    """
    first = chain.stages[0]
    begins = plan.start_node(plan.node(first.node), first.start)
    if begins is not None and first.start in begins.cached:
        del begins.cached[first.start]
        plan.touched.add(begins.id)


def _charge_verification(plan: SearchPlan, chain: Chain, event: e.ChainEnded) -> None:
    """Charge a verification to its study. Its steps are not progress of the plan."""
    study = plan.studies[chain.stages[0].study]
    study.proof_steps += event.steps
    study.gpu_seconds += event.seconds * chain.ranks
    if chain.proof is not None and event.outcome not in (ChainOutcome.DONE, ChainOutcome.STOPPED):
        plan.failed_verifications[chain.proof] = plan.failed_verifications.get(chain.proof, 0) + 1


def _release(plan: SearchPlan, chain: Chain) -> None:
    """Remove a chain. Its untrained stages and unsaved states are outstanding again."""
    for index, stage in enumerate(chain.stages):
        node = plan.node(stage.node)
        if node.running.pop((chain.id, index), None):
            plan.touched.add(node.id)
        if node.saving.get(stage.end) == chain.id:
            del node.saving[stage.end]
            node.cached.pop(stage.end, None)
            outstanding_requests.drop_evaluations(plan, node, stage.end)
            plan.touched.add(node.id)
    plan.chains.end(chain)


def fail(plan: SearchPlan, event: e.StageFailed) -> None:
    """Record an error of the user's code. The stage is tried again, and trials without restarts left fail."""
    chain = plan.chains[event.chain]
    if chain.proof is not None:
        _fail_check(plan, chain, event)
        return
    stage = chain.stages[event.index]
    node = plan.node(stage.node)
    _charge(plan, chain, stage, steps := max(event.step - stage.start, 0), event.seconds)
    _record_kept(node, stage, steps)
    node.failed_at = max(node.failed_at, stage.start + steps)
    _fail_trials(plan, node, event, _restarts_used(node, event, chain.slot), stage)
    _release(plan, chain)


def _fail_check(plan: SearchPlan, chain: Chain, event: e.StageFailed) -> None:
    """Record a failed check of the trainer: for the values of a root, or for a study whose metric is not reported."""
    stage = chain.stages[0]
    error = {"kind": event.kind, "step": event.step, "error": event.error, "slot": chain.slot, "node": stage.node}
    error |= {"place": event.signature} if event.signature else {}
    if event.kind == FailureKind.METRIC:
        plan.unreported[stage.study] = error
    else:
        plan.check_failures[stage.node] = error
    plan.chains.end(chain)


def _fail_trials(plan: SearchPlan, node: Node, event: e.StageFailed, used: int | None, stage: e.Stage) -> None:
    """Fail the trials without restarts left. used: the tries in this node; None if the error is not tried again."""
    may_count = used is not None and counts_for_other_trials(event)
    equal = plan.final_failures.get(error_location(event)) if may_count else None
    counted = used if used is None or equal is None else max(used, equal.tries)
    if equal is not None and event.evaluated is not None:
        node.evaluations_given_up[event.evaluated] = equal.tries
    error = {"kind": event.kind, "step": event.step, "error": event.error, "tries": count_tries(node, event, stage)}
    error |= {"place": event.signature} if event.signature else {}
    failed = []
    for key, step in list(_affected_trials(plan, node, event)):
        if counted is None or counted > plan.studies[key[0]].spec.max_restarts:
            is_spared = used is not None and used <= plan.studies[key[0]].spec.max_restarts
            why = {"equal_to": [*equal.trial]} if equal is not None and is_spared else {}
            outstanding_requests.fail_trial(plan, plan.trial(key), step, error | why)
            failed.append(key)
    if failed and may_count and used is not None and (equal is None or used > equal.tries):
        plan.final_failures[error_location(event)] = FinalFailure(used, failed[0])


def _affected_trials(plan: SearchPlan, node: Node, event: e.StageFailed) -> Iterator[tuple[TrialKey, int]]:
    """The trials that the failure stops, each with a step that it waits for.

    A failed evaluation stops only the trials that requested it, explicitly or by `eval_every`.
    """
    for key, step in plan.trials_waiting_after(node, event.step):
        if event.evaluated is None or step == event.evaluated or plan.studies[key[0]].spec.evaluates(event.evaluated):
            yield key, step


def _restarts_used(node: Node, event: e.StageFailed, slot: str) -> int | None:
    """The tries that this error has used; None if it is not tried again."""
    if event.evaluated is not None:
        node.evaluation_failures.setdefault((event.evaluated, event.signature or ""), []).append(slot)
        return node.evaluation_tries(event.evaluated)
    if event.signature is None:
        return None
    slots = node.failures.setdefault((event.step, event.signature), [])
    slots.append(slot)
    return max(len(slots), sum(map(len, node.failures.values())) // MOST_FAILURES)
