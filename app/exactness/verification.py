"""Which steps are trained again to see whether a plan's trainer is exact, and what they are compared with.

Each distinct resumption of a plan is compared by a few steps around it. `whole_proofs` says which trials are trained
again as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain import checkpoint_needs
from app.domain.chain_assignment import ChainAssignment, Comparison, ResumePoint, VerificationOrder
from app.domain.events import ExactnessTested, Stage
from app.domain.outstanding_requests import evaluations_of_each
from app.domain.search_plan import Node, Resumption, SearchPlan, Trial, Value, Witness, resumption_at
from app.domain.stage_tree import Place
from app.domain.terms import NodeId, StudyId, VerificationKind
from app.domain.trainer_check import MAX_FAILED_VERIFICATIONS, trial_through, untried_roots
from app.exactness import open_suspicions
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import assignment_of

PROOF_SHARE = 0.02
"""Of a study's steps, so many may be trained again to compare."""

SMALL_SHARE, SMALL_STEPS = 0.1, 32
"""In small studies one comparison may cost that share of the steps, up to so many: less would compare nothing."""

MOMENT_SECONDS, MOMENTS = 2.0, 5
"""A comparison that takes no longer may be made in any case, as long as so many of them for each resumption are not
exceeded: where trials are short, the state before a resumption lies far back."""

FEW_STEPS = 2
"""A comparison has at least so many steps behind a resumption, and a trainer is tried for so many."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Train on from `resume`, or from nothing, through these stages, as a trial does that passes them, and compare."""

    kind: VerificationKind
    trial: Trial
    stages: tuple[Stage, ...]
    resume: ResumePoint | None
    order: VerificationOrder


def check(plan: SearchPlan) -> Verification | None:
    """A trainer's first steps, with values with which it has not failed yet; None where no running study wants that."""
    if (untried := next(untried_roots(plan), None)) is None:
        return None
    root, trial = untried
    most, study = int(PROOF_SHARE * _steps(plan)), plan.studies[trial.study]
    metrics = study.objectives.metrics if study.metric else ()
    stage = Stage(node=root, start=0, end=min(FEW_STEPS, trial.steps), study=study.id)
    return Verification(
        VerificationKind.CHECK, trial, (stage,), None, VerificationOrder(VerificationKind.CHECK, (), most, metrics)
    )


def comparison(plan: SearchPlan, device: str) -> Verification | None:
    """The steps around the first resumption that can be compared now on a kind of device; None while one is."""
    if (
        not plan.is_compared
        or has_failed_too_often(plan, VerificationKind.HANDOVER)
        or _is_under_way(plan, VerificationKind.HANDOVER)
    ):
        return None
    return next(filter(None, (_of_resumption(plan, device, each) for each in plan.uncompared_resumptions)), None)


def _is_under_way(plan: SearchPlan, kind: VerificationKind) -> bool:
    return any(chain.proof == kind for chain in plan.chains.values())


def _of_resumption(plan: SearchPlan, device: str, resumption: Resumption) -> Verification | None:
    missing = resumption.values - plan.compared.get(resumption.step, frozenset())
    for witness in _sort_by_worth(plan, plan.witnesses.get(resumption.step, ())):
        is_apt = _may_cost(plan, witness.cost) and (not missing or missing & _values_of(plan, witness))
        proof = trained_again(plan, VerificationKind.HANDOVER, witness, device) if is_apt else None
        if proof is not None:
            return proof
    return None


def _values_of(plan: SearchPlan, witness: Witness) -> frozenset[Value]:
    """The kinds of values under which a witness compares its resumption."""
    if witness.node not in plan.nodes:
        return frozenset()
    return plan.resumption(witness.node, witness.step, witness.resumption).values


def _sort_by_worth(plan: SearchPlan, witnesses: Sequence[Witness]) -> list[Witness]:
    """Those first that compare the most steps of what a resumption may cost; then the others, the cheapest first."""
    most = max(steps_behind(plan), 2 * FEW_STEPS)
    return sorted(witnesses, key=lambda each: (each.cost > most, each.cost if each.cost > most else -each.cost))


def _may_cost(plan: SearchPlan, cost: int) -> bool:
    """Whether so many steps may be trained again for one resumption."""
    steps = _steps(plan)
    spent = sum(test.step - test.begin for test in plan.tests if test.proof == VerificationKind.HANDOVER)
    if cost <= 2 * FEW_STEPS or _takes_a_moment(plan, cost, spent):
        return True
    share = max(PROOF_SHARE * steps, 4 * FEW_STEPS * len(plan.resumptions))
    return cost <= max(most_steps(plan), min(SMALL_SHARE * steps, SMALL_STEPS)) and spent + cost <= share


def _takes_a_moment(plan: SearchPlan, cost: int, spent: int) -> bool:
    """Whether so many more steps, and all that were trained again before, cost next to nothing."""
    paced = [study for study in plan.studies.values() if study.paced_steps]
    if not paced:
        return False
    step = sum(study.paced_seconds for study in paced) / sum(study.paced_steps for study in paced)
    most = MOMENT_SECONDS * MOMENTS * max(1, len(plan.resumptions))
    return cost * step <= MOMENT_SECONDS and (spent + cost) * step <= most


def steps_behind(plan: SearchPlan) -> int:
    """How many steps behind each resumption are compared: more, the more the studies have."""
    return max(FEW_STEPS, int(PROOF_SHARE * _steps(plan)) // max(1, len(plan.resumptions)))


def spans_of(proof: Verification) -> list[Span]:
    """The stages of a proof, as of a path."""
    return [Span(stage.node, stage.start, stage.end, stage.study) for stage in proof.stages]


def most_steps(plan: SearchPlan) -> int:
    """How many steps may be trained again while other work waits."""
    return max(2 * FEW_STEPS, int(PROOF_SHARE * _steps(plan)))


def keep_at(frontier: Frontier, spans: Sequence[Span]) -> tuple[int, ...]:
    """The steps of a chain at which states are kept to compare the resumptions behind which they lie.

    Trials part at the ends of its stages, and it may begin with a saved state itself. Where the chain is evaluated soon
    behind that, the state is kept there, so that the metrics are compared as well.
    """
    plan = frontier.plan
    if not plan.is_compared or plan.nodes[spans[0].node].alone:
        return ()
    way, end, most = plan.path_to(spans[-1].node, spans[-1].end), spans[-1].end, steps_behind(plan)
    evaluated = sorted(step for steps in evaluations_of_each(plan, spans) for step in steps)
    parts = [spans[0].start, *(span.end for span in spans[:-1])]
    kept = set[int]()
    for step in (each for each in parts if each and not plan.is_compared_at(resumption_at(way, each))):
        soon = (each for each in evaluated if step < each <= step + max(most, 2 * FEW_STEPS))
        kept.add(min(max(soon, default=step + most), end))
    return tuple(sorted(kept))


def proof_assignment(frontier: Frontier, proof: Verification) -> ChainAssignment:
    """What the row of a chain that makes a proof says."""
    return replace(assignment_of(frontier, proof.trial, proof.stages, proof.resume), proof=proof.order, patient=True)


# ---------------------------------------------------------------------------------------------------- trained again


def trained_again(plan: SearchPlan, kind: VerificationKind, witness: Witness, device: str) -> Verification | None:
    """Train a witness's steps again; None where a state that this takes is kept no longer, or no study wants it now."""
    node = plan.nodes.get(witness.node)
    if node is None or witness.step not in node.checkpoints:
        return None
    if any(_is_test_of(test, witness, device) for test in plan.tests):
        return None
    return verify_path(plan, kind, witness.begin, [(node.id, witness.step)])


def verify_path(
    plan: SearchPlan, kind: VerificationKind, begin: int, places: Sequence[Place], trial: Trial | None = None
) -> Verification | None:
    """Train from a state that is kept at `begin`, or from nothing, through these places, and compare at each.

    trial: whose values are taken, and whose evaluations alone are made; by default, any that passes there.
    """
    node, end = plan.nodes[places[-1][0]], places[-1][1]
    if not begin and plan.ancestry(node.id)[0].id in plan.means:
        return None  # an average is no training that can be done again from nothing
    lead = trial or trial_through(plan, plan.studies.values(), node.id, end)
    resume = _resume(plan, node, begin) if begin else None
    if lead is None or (begin and resume is None) or _is_otherwise(plan, node, begin, end):
        return None
    comparisons = tuple(filter(None, (_comparison(plan, plan.nodes[name], step, trial) for name, step in places)))
    if not comparisons:
        return None
    ends = [(NodeId(each.node), each.step) for each in comparisons]
    stages = tuple(_stages(plan, node, begin, ends, comparisons, lead.study))
    ignored = tuple(evaluation_changes(plan)) if kind == VerificationKind.WHOLE else ()
    suspects = _suspects(plan, lead) if kind == VerificationKind.WHOLE else ()
    origin = _resume_before(plan, node, end) if kind == VerificationKind.WHOLE else None
    order = VerificationOrder(kind, comparisons, most_steps(plan), ignored=ignored, suspects=suspects, origin=origin)
    return Verification(kind, lead, stages, resume, order)


def _suspects(plan: SearchPlan, trial: Trial) -> tuple[str, ...]:
    suspicions = (each for each in open_suspicions(plan) if not each.is_of_evaluation)
    concerned = (each for each in suspicions if each.concerns(plan, trial))
    return tuple(dict.fromkeys(name for each in concerned for name in sorted(each.names)))


def evaluation_changes(plan: SearchPlan) -> list[str]:
    """The leaves of the state that evaluations change: a trial without them differs there, if nowhere else."""
    tests = (test for test in plan.tests if test.proof == VerificationKind.EVALUATION)
    return list(dict.fromkeys(name for test in tests for name in test.stray))


def _stages(
    plan: SearchPlan,
    node: Node,
    begin: int,
    places: Sequence[Place],
    comparisons: Sequence[Comparison],
    study: StudyId,
) -> Iterator[Stage]:
    measured = {(each.node, each.step) for each in comparisons if each.metrics is not None}
    for each, end in plan.path_to(node.id, places[-1][1]):
        if end > begin:
            steps = tuple(step for name, step in places if name == each.id and (name, step) in measured)
            yield Stage(node=each.id, start=max(each.start, begin), end=end, study=study, evaluate=steps)


def _is_otherwise(plan: SearchPlan, node: Node, begin: int, end: int) -> bool:
    """Whether some of these steps are known not to be exact, such as a resume under another torch."""
    noted = ((step, last) for each, last in plan.path_to(node.id, end) for step, _ in each.not_exact)
    return any(begin < step <= last for step, last in noted)


def _comparison(plan: SearchPlan, node: Node, step: int, trial: Trial | None) -> Comparison | None:
    """With the state that is kept there and the metrics on record; of a whole trial, with the metrics that it asked for
    and the state at its end, since to save one may be a break.
    """
    metrics, state = node.metrics.get(step), node.checkpoints.get(step)
    if trial is not None:
        is_asked_for = plan.studies[trial.study].evaluates(step) or step in trial.requested_steps
        metrics, state = metrics if is_asked_for else None, state if step == trial.steps else None
    if state is not None:
        return Comparison(node.id, step, state.key, state.sha256, state.since or 0, metrics, state.parts)
    return None if metrics is None else Comparison(node.id, step, "", "", 0, metrics)


def _resume_before(plan: SearchPlan, node: Node, step: int) -> ResumePoint | None:
    """The last state that is kept up to a step on the way to a node."""
    at = next(iter(checkpoint_needs.latest_before(plan, node.id, step)), None)
    return None if at is None else ResumePoint(at.node, at.step, at.key, at.checkpoint.sha256, at.checkpoint.parts)


def _resume(plan: SearchPlan, node: Node, step: int) -> ResumePoint | None:
    """The state kept at a step on the way to a node."""
    for each, last in plan.path_to(node.id, step):
        if each.start < step <= last and (checkpoint := each.checkpoints.get(step)) is not None:
            return ResumePoint(each.id, step, checkpoint.key, checkpoint.sha256, checkpoint.parts)
    return None


# ------------------------------------------------------------------------------------------------------------- small


def _is_test_of(test: ExactnessTested, witness: Witness, device: str) -> bool:
    """Whether the witness was compared, or could not be on that kind of device."""
    is_same = (test.node, test.step, test.begin) == (witness.node, witness.step, witness.begin)
    return is_same and (not test.unproven or test.device == device)


def _steps(plan: SearchPlan) -> int:
    """Unique steps that the running studies have asked for."""
    return sum(study.unique for study in plan.studies.values() if study.is_running)


def has_failed_too_often(plan: SearchPlan, kind: VerificationKind) -> bool:
    """Whether proofs of a kind ended by accidents so often that none is begun again."""
    return plan.failed_verifications.get(kind, 0) >= MAX_FAILED_VERIFICATIONS
