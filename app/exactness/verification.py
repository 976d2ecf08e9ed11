"""Builds verifications: the steps to train again, and the states and metrics to compare them with.

Each distinct resumption of a plan is compared over a few steps around it. `verification_choice` chooses the trials that
are trained again as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain import checkpoint_needs
from app.domain.chain_assignment import ChainAssignment, Comparison, ResumePoint, VerificationOrder
from app.domain.events import ExactnessTested, Stage
from app.domain.outstanding_requests import evaluations_by_part
from app.domain.search_plan import Node, Resumption, SearchPlan, Trial, Value, Witness, resumption_at
from app.domain.stage_tree import Place
from app.domain.terms import StudyId, VerificationKind
from app.domain.trainer_check import MAX_FAILED_VERIFICATIONS, trial_through, untried_roots
from app.exactness import open_suspicions
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import base_assignment

VERIFICATION_SHARE = 0.02
"""The share of a study's steps that may be trained again for verification."""

SMALL_SHARE, SMALL_STEPS = 0.1, 32
"""In a small study one comparison may cost this share of the steps, up to this number.

`VERIFICATION_SHARE` would allow none there."""

MOMENT_SECONDS, MOMENTS = 2.0, 5
"""A comparison that takes no longer is made even if it costs too many steps, up to this number for each resumption:
the state before a resumption may be most of a short trial away."""

FEW_STEPS = 2
"""The minimum number of steps compared after a resumption, and the number of steps of a check."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Train `stages` as `trial` does, from the state `resume` or from step 0, and make the comparisons of `order`."""

    kind: VerificationKind
    trial: Trial
    stages: tuple[Stage, ...]
    resume: ResumePoint | None
    order: VerificationOrder


def next_check(plan: SearchPlan) -> Verification | None:
    """Train a trainer's first steps with values with which it has not failed; None if no running study needs this."""
    if (untried := next(untried_roots(plan), None)) is None:
        return None
    root, trial = untried
    most, study = int(VERIFICATION_SHARE * _steps(plan)), plan.studies[trial.study]
    metrics = study.spec.objectives.metrics if study.spec.metric else ()
    stage = Stage(node=root, start=0, end=min(FEW_STEPS, trial.steps), study=study.id)
    return Verification(
        VerificationKind.CHECK, trial, (stage,), None, VerificationOrder(VerificationKind.CHECK, (), most, metrics)
    )


def next_comparison(plan: SearchPlan, device: str) -> Verification | None:
    """Compare the first resumption for which this is possible now on a kind of device; None while one is compared."""
    kind = VerificationKind.HANDOVER
    is_running = any(chain.proof == kind for chain in plan.chains.values())
    if not plan.is_compared or has_failed_too_often(plan, kind) or is_running:
        return None
    return next(filter(None, (_verify_resumption(plan, device, each) for each in plan.uncompared_resumptions)), None)


def _verify_resumption(plan: SearchPlan, device: str, resumption: Resumption) -> Verification | None:
    missing = resumption.values - plan.compared.get(resumption.step, frozenset())
    for witness in _sort_by_worth(plan, plan.witnesses.get(resumption.step, ())):
        is_apt = _is_affordable(plan, witness.cost) and (not missing or missing & _values_of(plan, witness))
        proof = verify_witness(plan, VerificationKind.HANDOVER, witness, device) if is_apt else None
        if proof is not None:
            return proof
    return None


def _values_of(plan: SearchPlan, witness: Witness) -> frozenset[Value]:
    """The kinds of values under which a witness compares its resumption."""
    if witness.node not in plan.nodes:
        return frozenset()
    return plan.resumption(witness.node, witness.step, witness.resumption).values


def _sort_by_worth(plan: SearchPlan, witnesses: Sequence[Witness]) -> list[Witness]:
    """Witnesses within the usual cost first, the longest comparison first; then the others, the cheapest first."""
    most = max(steps_after_resumption(plan), 2 * FEW_STEPS)
    return sorted(witnesses, key=lambda each: (each.cost > most, each.cost if each.cost > most else -each.cost))


def _is_affordable(plan: SearchPlan, cost: int) -> bool:
    """Whether a number of steps may be trained again for one resumption."""
    steps = _steps(plan)
    spent = sum(test.step - test.begin for test in plan.tests if test.proof == VerificationKind.HANDOVER)
    if cost <= 2 * FEW_STEPS or _is_negligible(plan, cost, spent):
        return True
    share = max(VERIFICATION_SHARE * steps, 4 * FEW_STEPS * len(plan.resumptions))
    return cost <= max(max_waiting_steps(plan), min(SMALL_SHARE * steps, SMALL_STEPS)) and spent + cost <= share


def _is_negligible(plan: SearchPlan, cost: int, spent: int) -> bool:
    """Whether the time for these steps, and for all trained again before, is negligible. spent: their number."""
    paced = [study for study in plan.studies.values() if study.paced_steps]
    if not paced:
        return False
    step = sum(study.paced_seconds for study in paced) / sum(study.paced_steps for study in paced)
    most = MOMENT_SECONDS * MOMENTS * max(1, len(plan.resumptions))
    return cost * step <= MOMENT_SECONDS and (spent + cost) * step <= most


def steps_after_resumption(plan: SearchPlan) -> int:
    """The number of steps compared after each resumption, which grows with the studies' steps."""
    return max(FEW_STEPS, int(VERIFICATION_SHARE * _steps(plan)) // max(1, len(plan.resumptions)))


def spans_of(proof: Verification) -> list[Span]:
    return [Span(stage.node, stage.start, stage.end, stage.study) for stage in proof.stages]


def max_waiting_steps(plan: SearchPlan) -> int:
    """The number of steps that may be trained again while other work waits."""
    return max(2 * FEW_STEPS, int(VERIFICATION_SHARE * _steps(plan)))


def keep_at(frontier: Frontier, spans: Sequence[Span]) -> tuple[int, ...]:
    """The steps of a chain at which states are kept in order to compare resumptions with them.

    Training resumes at the ends of its stages, where trials branch, and at its begin if that has a saved state. If the
    chain evaluates soon after a resumption, the state of that step is kept, so that metrics are compared as well.
    """
    plan = frontier.plan
    if not plan.is_compared or plan.nodes[spans[0].node].is_isolated:
        return ()
    way, end, most = plan.path_to(spans[-1].node, spans[-1].end), spans[-1].end, steps_after_resumption(plan)
    evaluated = sorted(step for steps in evaluations_by_part(plan, spans) for step in steps)
    parts = [spans[0].start, *(span.end for span in spans[:-1])]
    kept = set[int]()
    for step in (each for each in parts if each and not plan.is_compared_at(resumption_at(way, each))):
        soon = (each for each in evaluated if step < each <= step + max(most, 2 * FEW_STEPS))
        kept.add(min(max(soon, default=step + most), end))
    return tuple(sorted(kept))


def verification_assignment(frontier: Frontier, proof: Verification) -> ChainAssignment:
    """The assignment of a chain that runs a verification."""
    work = base_assignment(frontier, proof.trial, proof.stages, proof.resume)
    return replace(work, proof=proof.order, patient=True)


def verify_witness(plan: SearchPlan, kind: VerificationKind, witness: Witness, device: str) -> Verification | None:
    """Train a witness's steps again; None if a state for it was deleted, it was compared, or no study can train it."""
    node = plan.nodes.get(witness.node)
    if node is None or witness.step not in node.checkpoints:
        return None
    if any(_is_test_of(test, witness, device) for test in plan.tests):
        return None
    return verify_path(plan, kind, witness.begin, [(node.id, witness.step)])


def verify_path(
    plan: SearchPlan, kind: VerificationKind, begin: int, places: Sequence[Place], trial: Trial | None = None
) -> Verification | None:
    """Train from the state kept at `begin`, or from step 0, to the last of `places`, and compare at each of them.

    trial: the trial whose values are used, and whose evaluations alone are repeated; by default, any that trains these
    steps, with all evaluations on record.
    """
    node, end = plan.nodes[places[-1][0]], places[-1][1]
    if not begin and plan.ancestry(node.id)[0].id in plan.means:
        return None  # an average of states cannot be trained again from step 0
    lead = trial or trial_through(plan, plan.studies.values(), node.id, end)
    resume = _resume(plan, node, begin) if begin else None
    if lead is None or (begin and resume is None) or _is_known_inexact(plan, node, begin, end):
        return None
    comparisons = tuple(filter(None, (_comparison(plan, plan.nodes[name], step, trial) for name, step in places)))
    if not comparisons:
        return None
    evaluations = {(each.node, each.step) for each in comparisons if each.metrics is not None} if trial else None
    stages = tuple(_stages(plan, node, begin, comparisons[-1].step, evaluations, lead.study))
    ignored = tuple(evaluation_changes(plan)) if kind == VerificationKind.WHOLE else ()
    suspects = _suspects(plan, lead) if kind == VerificationKind.WHOLE else ()
    origin = _resume_before(plan, node, end) if kind == VerificationKind.WHOLE else None
    order = VerificationOrder(
        kind, comparisons, max_waiting_steps(plan), ignored=ignored, suspects=suspects, origin=origin
    )
    return Verification(kind, lead, stages, resume, order)


def _suspects(plan: SearchPlan, trial: Trial) -> tuple[str, ...]:
    suspicions = (each for each in open_suspicions(plan) if not each.from_evaluation)
    concerned = (each for each in suspicions if each.concerns(plan, trial))
    return tuple(dict.fromkeys(name for each in concerned for name in sorted(each.names)))


def evaluation_changes(plan: SearchPlan) -> list[str]:
    """The leaves of the state that evaluations change: a trial without these evaluations always differs there."""
    tests = (test for test in plan.tests if test.proof == VerificationKind.EVALUATION)
    return list(dict.fromkeys(name for test in tests for name in test.stray))


def _stages(
    plan: SearchPlan, node: Node, begin: int, last: int, evaluations: set[tuple[str, int]] | None, study: StudyId
) -> Iterator[Stage]:
    """The stages up to step `last`, with these evaluations; None for all on record."""
    for each, end in plan.path_to(node.id, last):
        if end > begin:
            start = max(each.start, begin)
            there = (step for step in sorted(each.metrics) if start < step <= end)
            steps = tuple(step for step in there if evaluations is None or (each.id, step) in evaluations)
            yield Stage(node=each.id, start=start, end=end, study=study, evaluate=steps)


def _is_known_inexact(plan: SearchPlan, node: Node, begin: int, end: int) -> bool:
    """Whether some of these steps are recorded as inexact, such as steps resumed under another version of torch."""
    noted = ((step, last) for each, last in plan.path_to(node.id, end) for step, _ in each.not_exact)
    return any(begin < step <= last for step, last in noted)


def _comparison(plan: SearchPlan, node: Node, step: int, trial: Trial | None) -> Comparison | None:
    """Compare with the state kept at a step and the metrics on record.

    trial: for a whole trial, only metrics that it requested are compared, and only its final state, because saving one
    earlier may interrupt training.
    """
    metrics, state = node.metrics.get(step), node.checkpoints.get(step)
    if trial is not None:
        is_asked_for = plan.studies[trial.study].spec.evaluates(step) or step in trial.requested_steps
        metrics, state = metrics if is_asked_for else None, state if step == trial.steps else None
    if state is not None:
        return Comparison(node.id, step, state.key, state.sha256, state.since or 0, metrics, state.parts)
    return None if metrics is None else Comparison(node.id, step, "", "", 0, metrics)


def _resume_before(plan: SearchPlan, node: Node, step: int) -> ResumePoint | None:
    """The latest kept state up to a step on the path to a node."""
    at = next(iter(checkpoint_needs.latest_before(plan, node.id, step)), None)
    return None if at is None else ResumePoint(at.node, at.step, at.key, at.checkpoint.sha256, at.checkpoint.parts)


def _resume(plan: SearchPlan, node: Node, step: int) -> ResumePoint | None:
    """The state kept at a step on the path to a node."""
    for each, last in plan.path_to(node.id, step):
        if each.start < step <= last and (checkpoint := each.checkpoints.get(step)) is not None:
            return ResumePoint(each.id, step, checkpoint.key, checkpoint.sha256, checkpoint.parts)
    return None


def _is_test_of(test: ExactnessTested, witness: Witness, device: str) -> bool:
    """Whether a test compared the witness, or could not compare it on that kind of device."""
    is_same = (test.node, test.step, test.begin) == (witness.node, witness.step, witness.begin)
    return is_same and (not test.unproven or test.device == device)


def _steps(plan: SearchPlan) -> int:
    """The unique steps that running studies requested."""
    return sum(study.unique for study in plan.studies.values() if study.is_running)


def has_failed_too_often(plan: SearchPlan, kind: VerificationKind) -> bool:
    """Whether verifications of a kind failed by accident too often to begin another one."""
    return plan.failed_verifications.get(kind, 0) >= MAX_FAILED_VERIFICATIONS
