"""Which steps are trained again to prove that a plan's trainer is exact, and what they are compared with.

The first hand-overs come first: a few steps on from a checkpoint, against the process that went on. Slots with nothing
else to do train a whole trial alone, from step 0 without a break, and a share of the finished stages once more. Where a
user wants all of a study proven, they train every trial alone that has a number from behind a hand-over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain import keeping
from app.domain.assignment import ChainAssignment, Comparison, ProofOrder, ResumePoint
from app.domain.events import ExactnessTested, Stage
from app.domain.proofs import (
    MOST_IN_VAIN,
    compared_to,
    fails_on,
    is_checked,
    is_compared,
    needs_proof,
    passing,
    untried_roots,
)
from app.domain.search_plan import Chain, Node, SearchPlan, Study, Trial, Witness
from app.domain.stage_tree import Place
from app.domain.terms import ProofKind, StudyId
from app.scheduling.assignment import assignment_of
from app.scheduling.frontier import Frontier, Span

PROOF_SHARE = 0.02
"""Of a study's steps, so many may be trained again while other work waits."""

FEW_STEPS = 2
"""What a hand-over is compared after, and what a trainer is tried for."""

MOST_LOOKED_AT = 64
"""So many of a study's trials are looked at for the one with most hand-overs."""


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
    if not plan.is_compared or _in_vain(plan, ProofKind.HANDOVER):
        return None
    is_first = not is_compared(plan, device)
    if not is_first and (not plan.is_resumed_behind or is_compared(plan, device, is_behind=True)):
        return None
    if any(each.proof not in (None, ProofKind.CHECK) for each in plan.chains.values()):
        return None
    for witness in (each for each in plan.witnesses if is_first or each.is_behind):
        if not is_idle and witness.cost > most_steps(plan):
            return None
        if (proof := _again(plan, ProofKind.HANDOVER, witness)) is not None:
            return proof
    return None


def spans_of(proof: Proof) -> list[Span]:
    """The stages of a proof, as of a path."""
    return [Span(stage.node, stage.start, stage.end, stage.study) for stage in proof.stages]


def is_due(plan: SearchPlan, study: Study, device: str) -> bool:
    """Whether a study should not end yet, since its first hand-over is being compared or soon will be."""
    if not study.checks or not plan.is_compared or not any(test.device == device for test in plan.tests):
        return False
    if any(each.proof == ProofKind.HANDOVER for each in plan.chains.values()):
        return True
    return handover(plan, device) is not None


def in_idle_slot(plan: SearchPlan, device: str) -> Proof | None:
    """What a slot may prove that has nothing else to do: the first hand-over, trials alone, then stages drawn."""
    under_way = {each.proof for each in plan.chains.values()} - {None}
    may_be = plan.is_compared and not fails_on(plan, device) and not any(test.difference for test in plan.tests)
    if not may_be or under_way - {ProofKind.WHOLE}:
        return None
    if under_way:
        return _wanted(plan, device)
    return handover(plan, device, is_idle=True) or _wanted(plan, device) or _whole(plan, device) or _audit(plan)


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


def _again(plan: SearchPlan, kind: ProofKind, witness: Witness) -> Proof | None:
    """Train a witness's steps again; None where a state that this takes is kept no longer, or nobody cares any more."""
    node = plan.nodes.get(witness.node)
    if node is None or witness.step not in node.checkpoints or any(_is_test_of(test, witness) for test in plan.tests):
        return None
    return _proof(plan, kind, witness.begin, [(node.id, witness.step)])


def _proof(plan: SearchPlan, kind: ProofKind, begin: int, places: Sequence[Place]) -> Proof | None:
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


# --------------------------------------------------------------------------------------------------- with idle slots


def _wanted(plan: SearchPlan, device: str) -> Proof | None:
    """Of a study all of which its user wants proven, a trial alone: from its beginning, without a break, to its end.

    So is each that shares steps or was trained on from a saved state, the longest first: it covers those that end on
    its way. Nothing less would do. A comparison that begins with a kept state sees only what shows on its own few
    steps, and a fault in that state is in both of its ways; and of two trials that part, each may show what the other
    does not, since their values differ. So a beginning that trials share is trained once more for each of them: to
    share it would be the very hand-over that must be proven. Nothing is trained twice of which all was compared.
    """
    if _in_vain(plan, ProofKind.WHOLE):
        return None
    trained_alone = _known_alone(plan, device)
    studies = (study for study in plan.studies.values() if study.is_audited and study.may_be_proven)
    trials = (trial for study in studies for trial in study.trials if trial.path and needs_proof(plan, trial))
    longest = sorted(trials, key=lambda trial: trial.steps, reverse=True)
    ways = ([place for place in _on_record(plan, trial) if place not in trained_alone] for trial in longest)
    return next(filter(None, (_proof(plan, ProofKind.WHOLE, 0, way) for way in ways if way)), None)


def _known_alone(plan: SearchPlan, device: str) -> set[Place]:
    """Where it is known, or soon will be, what a trial alone comes to; or that it cannot be told on this device."""
    whole = (test for test in plan.tests if test.proof == ProofKind.WHOLE)
    places = {(test.node, test.step) for test in whole if test.device == device or not test.unproven}
    for stage in (stage for each in plan.chains.values() if each.proof == ProofKind.WHOLE for stage in each.stages):
        places |= {(stage.node, step) for step in range(stage.start + 1, stage.end + 1)}
    return places


def _on_record(plan: SearchPlan, trial: Trial) -> list[Place]:
    """Where a state is kept, or metrics are on record, on a trial's way to the last step that it was asked for."""
    nodes = [(plan.nodes[name], end) for name, end in plan.ends(next(trial.alone()))]
    return [(n.id, at) for n, end in nodes for at in sorted({*n.checkpoints, *n.metrics}) if 0 < at <= end]


def _whole(plan: SearchPlan, device: str) -> Proof | None:
    """The trial with the most hand-overs, alone from step 0; compared wherever its state is kept.

    One that is covered by what was compared already is left out.
    """
    if _in_vain(plan, ProofKind.WHOLE):
        return None
    here = (test for test in plan.tests if test.device == device and test.proof != ProofKind.CHECK)
    compared = {(test.node, test.step) for test in here if test.begin == 0}
    best: tuple[int, int, list[Place]] | None = None
    for study in [each for each in plan.studies.values() if each.may_be_proven]:
        for trial in _longest(plan, study):
            proven, states = compared_to(plan, trial, device), keeping.states_of(plan, trial).values()
            unproven = [at for at in states if at.step > proven and (at.node, at.step) not in compared]
            breaks = {at.checkpoint.since for at in unproven} - {0, None}
            rank = (len(breaks), unproven[-1].step if unproven else 0)
            if breaks and (best is None or rank > best[:2]):
                best = (*rank, [(at.node, at.step) for at in unproven])
    return None if best is None else _proof(plan, ProofKind.WHOLE, 0, best[2])


def _longest(plan: SearchPlan, study: Study) -> list[Trial]:
    """Those of a study's trials that were asked for most often, and for the most steps; no averages."""
    whole = [trial for trial in study.trials if not plan.begins(trial)]
    trials = sorted(whole, key=lambda trial: (len(trial.requested_steps), trial.steps), reverse=True)
    return trials[:MOST_LOOKED_AT]


def _audit(plan: SearchPlan) -> Proof | None:
    """A stage that was drawn, from before the state that it began with."""
    if _in_vain(plan, ProofKind.AUDIT):
        return None
    share = max((study.audit for study in plan.studies.values() if study.is_running), default=0.0)
    drawn = (witness for witness in plan.audits if witness.draw < share)
    return next(filter(None, (_again(plan, ProofKind.AUDIT, witness) for witness in drawn)), None)


# ------------------------------------------------------------------------------------------------------------- small


def _is_test_of(test: ExactnessTested, witness: Witness) -> bool:
    return (test.node, test.step, test.begin) == (witness.node, witness.step, witness.begin)


def _steps(plan: SearchPlan) -> int:
    """Different steps that the running studies have asked for."""
    return sum(study.unique for study in plan.studies.values() if study.is_running)


def _in_vain(plan: SearchPlan, kind: ProofKind) -> bool:
    return plan.proofs_in_vain.get(kind, 0) >= MOST_IN_VAIN
