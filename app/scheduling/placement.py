"""Which slot gets a chain, if any does now. Pure: the slots are given as they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.domain.assignment import ResumePoint
from app.domain.events import PlanOpened
from app.domain.search_plan import SearchPlan
from app.domain.slots import SlotDescription, shared_gpu
from app.scheduling.evaluations import evaluations
from app.scheduling.frontier import Span


@dataclass(frozen=True, slots=True)
class Candidates:
    """The slots that are alive and well, by name, and those of them that have nothing to do."""

    well: Sequence[SlotDescription]
    free: Sequence[SlotDescription]


def has_trainer(slot: SlotDescription, opened: PlanOpened) -> bool:
    """Whether the slot has the plan's trainer at its version. One that has not said yet which it has has none."""
    return slot.trainers.get(opened.trainer) == opened.trainer_version


def without_trainer(opened: PlanOpened, slots: Sequence[SlotDescription]) -> str:
    """That none of the slots has the plan's trainer, in a sentence that says what they have."""
    versions = sorted({slot.trainers[opened.trainer] for slot in slots if opened.trainer in slot.trainers})
    has = f"they have it at version {', '.join(versions)}" if versions else "they do not have it at any version"
    return f"no slot has trainer {opened.trainer} at version {opened.trainer_version}: {has}"


def place(
    plan: SearchPlan, id: str, spans: Sequence[Span], resume: ResumePoint | None, slots: Candidates
) -> SlotDescription | None:
    """The free slot that takes these spans in a row; None when they wait for one that is not free.

    It has the trainer. The user's code has not failed on it in a node of the chain while there is another slot, free or
    not, on which it has not: that is waited for, since a device may be broken that no self-test finds. Where it failed
    on all of them, the one on which it did so least often. Of several, one that has the model in memory, or else one
    whose GPU has least to do.
    """
    assert plan.opened is not None
    failed = _failures(plan, spans)
    able = [slot for slot in slots.well if has_trainer(slot, plan.opened)]
    least = min((failed.get(slot.name, 0) for slot in able), default=0)
    free = [slot for slot in slots.free if has_trainer(slot, plan.opened) and failed.get(slot.name, 0) <= least]
    model = resume and {"plan": id, "node": resume.node, "step": resume.step}
    return next((slot for slot in free if model and slot.resident_model == model), _with_least_neighbours(free, slots))


def _with_least_neighbours(free: Sequence[SlotDescription], slots: Candidates) -> SlotDescription | None:
    """One of these, on the GPU of which fewest slots have work: GPUs that are shared are filled evenly."""
    idle = {slot.name for slot in slots.free}
    busy = Counter(shared_gpu(slot.name) for slot in slots.well if slot.name not in idle)
    busy[None] = 0  # one that shares nothing has no neighbours
    return min(free, key=lambda slot: busy[shared_gpu(slot.name)], default=None)


def _failures(plan: SearchPlan, spans: Sequence[Span]) -> dict[str, int]:
    """How often the user's code failed on each slot, in the nodes of a chain, since a stage of them was completed."""
    counts: dict[str, int] = {}
    for node in {span.node for span in spans}:
        for slots in plan.nodes[node].failures.values():
            for slot in slots:
                counts[slot] = counts.get(slot, 0) + 1
    for span in spans:
        for slot in _could_not_evaluate(plan, span):
            counts[slot] = counts.get(slot, 0) + 1
    return counts


def _could_not_evaluate(plan: SearchPlan, span: Span) -> Iterator[str]:
    """The slots on which an evaluation that is still wanted of these steps failed, once for each time."""
    node = plan.nodes[span.node]
    wanted = evaluations(plan, node, span.start, span.end) if node.evaluation_failures else ()
    for (step, _), slots in node.evaluation_failures.items():
        yield from slots if step in wanted else ()
