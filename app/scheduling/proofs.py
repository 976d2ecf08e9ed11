"""Which steps are trained again to prove that a plan's trainer is exact, and what they are compared with.

The first hand-overs come first: a few steps on from a checkpoint, against the process that went on. `idle_proofs` says
what slots prove that have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain.assignment import ChainAssignment, Comparison, ProofOrder, ResumePoint, SlotDescription
from app.domain.events import ExactnessTested, Stage
from app.domain.proofs import (
    MOST_IN_VAIN,
    is_checked,
    is_compared,
    passing,
    untried_roots,
)
from app.domain.search_plan import Chain, Node, SearchPlan, Study, Trial, Witness
from app.domain.stage_tree import Place
from app.domain.terms import ProofKind, StudyId
from app.scheduling.assignment import assignment_of
from app.scheduling.frontier import Frontier, Span
from app.scheduling.gangs import kinds_that_prove

PROOF_SHARE = 0.02
"""Of a study's steps, so many may be trained again while other work waits."""

FEW_STEPS = 2
"""What a hand-over is compared after, and what a trainer is tried for."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Train on from `resume`, or from nothing, through these stages, as a trial does that passes them, and compare."""

    kind: ProofKind
    trial: Trial
    stages: tuple[Stage, ...]
    resume: ResumePoint | None
    order: ProofOrder


def check(plan: SearchPlan) -> Proof | None:
    """A trainer's first steps, with values with which it has not failed yet; None where no running study wants that."""
    if (untried := next(untried_roots(plan), None)) is None:
        return None
    root, trial = untried
    most, study = int(PROOF_SHARE * _steps(plan)), plan.studies[trial.study]
    metrics = study.objectives.metrics if study.metric else ()
    stage = Stage(node=root, start=0, end=min(FEW_STEPS, trial.steps), study=study.id)
    return Proof(ProofKind.CHECK, trial, (stage,), None, ProofOrder(ProofKind.CHECK, (), most, metrics))


def first(frontier: Frontier, device: str) -> Proof | None:
    """What comes before other work on a kind of device: the trainer is tried, and its first hand-over compared."""
    if is_checked(frontier.plan, device):
        return handover(frontier.plan, device)
    return check(frontier.plan) if frontier.longest() is not None else None


def handover(plan: SearchPlan, device: str, *, is_idle: bool = False) -> Proof | None:
    """The cheapest comparison that shows whether a state can be trained on from on a kind of device.

    Where states were trained on from behind a change of a hyper-parameter, one of those is compared as well. None where
    that was seen, is under way, or costs more than it may while other work waits.
    """
    if not plan.is_compared or in_vain(plan, ProofKind.HANDOVER):
        return None
    is_first = not is_compared(plan, device)
    if not is_first and (not plan.is_resumed_behind or is_compared(plan, device, is_behind=True)):
        return None
    if any(each.proof not in (None, ProofKind.CHECK) for each in plan.chains.values()):
        return None
    for witness in (each for each in plan.witnesses if is_first or each.is_behind):
        if not is_idle and witness.cost > most_steps(plan):
            return None
        if (proof := trained_again(plan, ProofKind.HANDOVER, witness)) is not None:
            return proof
    return None


def spans_of(proof: Proof) -> list[Span]:
    """The stages of a proof, as of a path."""
    return [Span(stage.node, stage.start, stage.end, stage.study) for stage in proof.stages]


def is_due(plan: SearchPlan, study: Study, slots: Sequence[SlotDescription]) -> bool:
    """Whether a study should not end yet, since its trainer or first hand-over is being compared, or soon will be."""
    return any(_is_due_on(plan, study, kind) for kind in kinds_that_prove(plan, study.least_ranks, slots))


def _is_due_on(plan: SearchPlan, study: Study, device: str) -> bool:
    if not study.checks or not plan.is_compared or not any(test.device == device for test in plan.tests):
        return False
    under_way = {each.proof for each in plan.chains.values()}
    if not is_checked(plan, device):
        return ProofKind.CHECK in under_way
    return ProofKind.HANDOVER in under_way or handover(plan, device) is not None


def can_wait(plan: SearchPlan, under_way: Chain) -> bool:
    """Whether a chain proves something for which no study waits: it makes room for other work."""
    if under_way.proof in (None, ProofKind.CHECK):
        return False
    costs = sum(stage.end - stage.start for stage in under_way.stages)
    return under_way.proof != ProofKind.HANDOVER or costs > most_steps(plan)


def is_wanted(plan: SearchPlan, under_way: Chain) -> bool:
    """Whether the study still is there for which a chain proves something."""
    return plan.studies[under_way.stages[0].study].may_be_proven


def most_steps(plan: SearchPlan) -> int:
    """How many steps may be trained again while other work waits."""
    return max(2 * FEW_STEPS, int(PROOF_SHARE * _steps(plan)))


def keep_at(frontier: Frontier, spans: Sequence[Span], device: str) -> tuple[int, ...]:
    """The steps inside a chain at which states are kept that the first hand-over will be compared with.

    They lie behind the first state that is kept at the end of a stage; in a chain of one stage, behind one of theirs.
    """
    plan = frontier.plan
    if not plan.is_compared or plan.witnesses or is_compared(plan, device) or plan.nodes[spans[0].node].alone:
        return ()
    if len(spans) > 1:
        steps = [spans[0].end + FEW_STEPS]
    else:
        steps = [spans[0].start + FEW_STEPS, spans[0].start + 2 * FEW_STEPS]
    return tuple(step for step in steps if step <= spans[-1].end)


def proof_assignment(frontier: Frontier, proof: Proof) -> ChainAssignment:
    """What the row of a chain that makes a proof says."""
    return replace(assignment_of(frontier, proof.trial, proof.stages, proof.resume), proof=proof.order, patient=True)


# ---------------------------------------------------------------------------------------------------- trained again


def trained_again(plan: SearchPlan, kind: ProofKind, witness: Witness) -> Proof | None:
    """Train a witness's steps again; None where a state that this takes is kept no longer, or nobody cares any more."""
    node = plan.nodes.get(witness.node)
    if node is None or witness.step not in node.checkpoints or any(_is_test_of(test, witness) for test in plan.tests):
        return None
    return proof_through(plan, kind, witness.begin, [(node.id, witness.step)])


def proof_through(plan: SearchPlan, kind: ProofKind, begin: int, places: Sequence[Place]) -> Proof | None:
    """Train from a state that is kept at `begin`, or from nothing, through these places, and compare at each."""
    node, end = plan.nodes[places[-1][0]], places[-1][1]
    trial = passing(plan, plan.studies.values(), node.id, end)
    if not begin and plan.ancestry(node.id)[0].id in plan.means:
        return None  # an average is no training that can be done again from nothing
    resume = _resume(plan, node, begin) if begin else None
    if trial is None or (begin and resume is None) or _is_otherwise(plan, node, begin, end):
        return None
    comparisons = tuple(_comparison(plan.nodes[name], step) for name, step in places)
    stages = tuple(_stages(plan, node, begin, places, trial.study))
    return Proof(kind, trial, stages, resume, ProofOrder(kind, comparisons, most_steps(plan)))


def _stages(plan: SearchPlan, node: Node, begin: int, places: Sequence[Place], study: StudyId) -> Iterator[Stage]:
    for each, end in plan.way(node.id, places[-1][1]):
        if end > begin:
            steps = tuple(step for name, step in places if name == each.id and step in each.metrics)
            yield Stage(node=each.id, start=max(each.start, begin), end=end, study=study, evaluate=steps)


def _is_otherwise(plan: SearchPlan, node: Node, begin: int, end: int) -> bool:
    """Whether some of these steps are known not to be exact, as where they went on under another torch."""
    noted = ((step, last) for each, last in plan.way(node.id, end) for step, _ in each.not_exact)
    return any(begin < step <= last for step, last in noted)


def _comparison(node: Node, step: int) -> Comparison:
    """With the state that is kept there and the metrics on record; with these alone, where none is kept."""
    metrics, state = node.metrics.get(step), node.checkpoints.get(step)
    if state is None:
        return Comparison(node.id, step, "", "", node.broke, metrics)
    return Comparison(node.id, step, state.key, state.sha256, state.since or 0, metrics, state.parts)


def _resume(plan: SearchPlan, node: Node, step: int) -> ResumePoint | None:
    """The state kept at a step on the way to a node."""
    for each, last in plan.way(node.id, step):
        if each.start < step <= last and (checkpoint := each.checkpoints.get(step)) is not None:
            return ResumePoint(each.id, step, checkpoint.key, checkpoint.sha256, checkpoint.parts)
    return None


# ------------------------------------------------------------------------------------------------------------- small


def _is_test_of(test: ExactnessTested, witness: Witness) -> bool:
    return (test.node, test.step, test.begin) == (witness.node, witness.step, witness.begin)


def _steps(plan: SearchPlan) -> int:
    """Different steps that the running studies have asked for."""
    return sum(study.unique for study in plan.studies.values() if study.is_running)


def in_vain(plan: SearchPlan, kind: ProofKind) -> bool:
    """Whether proofs of a kind have come to no end so often that none is begun again."""
    return plan.proofs_in_vain.get(kind, 0) >= MOST_IN_VAIN
