"""What a slot proves that has nothing else to do.

It trains a whole trial alone, from step 0 without a break, and a share of the finished stages once more. Where a user
wants all of a study proven, it trains every trial alone that has a number from behind a hand-over.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain import keeping
from app.domain.proofs import compared_to, fails_on, needs_proof
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.stage_tree import Place
from app.domain.terms import ProofKind
from app.scheduling.frontier import Frontier
from app.scheduling.proofs import Proof, handover, in_vain, proof_through, spans_of, trained_again

MOST_LOOKED_AT = 64
"""So many of a study's trials are looked at for the one with most hand-overs."""


def in_idle_slot(plan: SearchPlan, device: str) -> Proof | None:
    """What a slot may prove that has nothing else to do: the first hand-over, trials alone, then stages drawn."""
    under_way = {each.proof for each in plan.chains.values()} - {None}
    may_be = plan.is_compared and not fails_on(plan, device) and not any(test.difference for test in plan.tests)
    if not may_be or under_way - {ProofKind.WHOLE}:
        return None
    if under_way:
        return _wanted(plan, device)
    return handover(plan, device, is_idle=True) or _wanted(plan, device) or _whole(plan, device) or _audit(plan)


def comes_to_something(frontier: Frontier, proof: Proof) -> bool:
    """Whether the first comparison of an idle slot's proof will be made before its study is over.

    That is as soon as the chains that train now are, where nothing else waits; the proof is stopped then. A
    proof that is cut off shows nothing; and where slots share a machine, it slows the other trainings down.
    """
    plan = frontier.plan
    training = [chain for chain in plan.chains.values() if chain.proof is None]
    is_awaited = proof.kind == ProofKind.HANDOVER or plan.studies[proof.trial.study].is_audited
    if is_awaited or frontier.longest() is not None or not training:
        return True
    until = min(comparison.step for comparison in proof.order.comparisons)
    spans = [replace(span, end=min(span.end, until)) for span in spans_of(proof) if span.start < until]
    seconds = sum(frontier.seconds(span) for span in spans)
    return seconds <= max(frontier.seconds_to_end(chain) for chain in training)


def _wanted(plan: SearchPlan, device: str) -> Proof | None:
    """Of a study all of which its user wants proven, a trial alone: from its beginning, without a break, to its end.

    So is each that shares steps or was trained on from a saved state, the longest first: it covers those that end on
    its way. Nothing less would do. A comparison that begins with a kept state sees only what shows on its own few
    steps, and a fault in that state is in both of its ways; and of two trials that part, each may show what the other
    does not, since their values differ. So a beginning that trials share is trained once more for each of them: to
    share it would be the very hand-over that must be proven. Nothing is trained twice of which all was compared.
    """
    if in_vain(plan, ProofKind.WHOLE):
        return None
    trained_alone = _known_alone(plan, device)
    studies = (study for study in plan.studies.values() if study.is_audited and study.may_be_proven)
    trials = (trial for study in studies for trial in study.trials if trial.path and needs_proof(plan, trial))
    longest = sorted(trials, key=lambda trial: trial.steps, reverse=True)
    ways = ([place for place in _on_record(plan, trial) if place not in trained_alone] for trial in longest)
    return next(filter(None, (proof_through(plan, ProofKind.WHOLE, 0, way) for way in ways if way)), None)


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
    if in_vain(plan, ProofKind.WHOLE):
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
    return None if best is None else proof_through(plan, ProofKind.WHOLE, 0, best[2])


def _longest(plan: SearchPlan, study: Study) -> list[Trial]:
    """Those of a study's trials that were asked for most often, and for the most steps; no averages."""
    whole = [trial for trial in study.trials if not plan.begins(trial)]
    trials = sorted(whole, key=lambda trial: (len(trial.requested_steps), trial.steps), reverse=True)
    return trials[:MOST_LOOKED_AT]


def _audit(plan: SearchPlan) -> Proof | None:
    """A stage that was drawn, from before the state that it began with."""
    if in_vain(plan, ProofKind.AUDIT):
        return None
    share = max((study.audit for study in plan.studies.values() if study.is_running), default=0.0)
    drawn = (witness for witness in plan.audits if witness.draw < share)
    return next(filter(None, (trained_again(plan, ProofKind.AUDIT, witness) for witness in drawn)), None)
