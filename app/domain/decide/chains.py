"""What slots are given, and what becomes of it when they are lost."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import commands as c
from app.domain import events as e
from app.domain.errors import StateConflict
from app.domain.search_plan import SearchPlan
from app.domain.states import FailureKind


def choose_packing(plan: SearchPlan, command: c.ChoosePacking) -> Iterator[e.Event]:
    if plan.packing is not None:
        return
    if command.profile is not None:
        yield command.profile
    yield e.PackingChosen(width=command.width, reason=command.reason)


def assign(plan: SearchPlan, command: c.AssignChain) -> Iterator[e.Event]:
    if command.chain in plan.chains:
        return
    first = command.stages[0]
    for stage in command.stages:
        node = plan.nodes[stage.node]
        for (chain, _), (begin, end) in node.running.items():
            start = max(begin, command.progress[chain].step) if chain in command.progress else begin
            if (stage.start < end and start < stage.end) or (stage.start, stage.end) == (begin, end):
                raise StateConflict(f"steps {start} to {end} of node {node.id} are being trained already")
        for step in (*node.resumable, *node.saving):
            if stage.start < step <= stage.end:
                raise StateConflict(f"node {node.id} has been trained to step {step} already")
    if not plan.can_begin(plan.nodes[first.node], first.start):
        raise StateConflict(f"there is no checkpoint of node {first.node} at step {first.start}")
    yield e.ChainAssigned(chain=command.chain, slot=command.slot, stages=command.stages, at=command.at)


def assign_proof(plan: SearchPlan, command: c.AssignProof) -> Iterator[e.Event]:
    if command.chain in plan.chains:
        return
    if any(chain.proof == command.proof and chain.slot == command.slot for chain in plan.chains.values()):
        raise StateConflict(f"slot {command.slot} makes a {command.proof} of the plan already")
    yield e.ChainAssigned(
        chain=command.chain, slot=command.slot, stages=command.stages, at=command.at, proof=command.proof
    )


def lose(plan: SearchPlan, command: c.LoseChain) -> Iterator[e.Event]:
    chain = plan.chains.get(command.chain)
    if chain is None:
        return
    is_suspect = command.died_alone and not chain.is_trained and chain.proof is None
    if is_suspect and plan.is_isolated((stage := chain.stages[chain.index]).node, stage.start):
        times = plan.nodes[stage.node].lost[stage.start] + 1
        yield e.StageFailed(
            chain=chain.id,
            index=chain.index,
            step=stage.start if stage.end > stage.start else stage.start - 1,
            kind=FailureKind.POISON,
            error=f"the process that trained this stage, from step {stage.start} to {stage.end}, died {times} times,"
            " the last time with no other stage beside it",
            seconds=command.seconds,
        )
        return
    yield e.ChainEnded(
        chain=chain.id,
        outcome=command.outcome,
        steps=command.steps,
        seconds=command.seconds,
        died_alone=is_suspect,
    )
