"""Makes chains' assignments: what a slot is told of the stages that it is to train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from app.domain.assignment import ChainAssignment, ResumePoint
from app.domain.events import Stage
from app.domain.ids import TrialKey
from app.domain.search_plan import Node, SearchPlan, Study, Trial
from app.scheduling.evaluations import evaluations_of_each
from app.scheduling.frontier import Frontier, Span


def stages_of(plan: SearchPlan, spans: Sequence[Span]) -> tuple[Stage, ...]:
    """The stages of a chain, charged to the study of its lead trial."""
    study, _ = lead_trial(plan, spans[-1])
    return tuple(
        Stage(node=span.node, start=span.start, end=span.end, study=study, evaluate=tuple(steps))
        for span, steps in zip(spans, evaluations_of_each(plan, spans), strict=True)
    )


def lead_trial(plan: SearchPlan, span: Span) -> TrialKey:
    """The trial on whose behalf a chain that ends with `span` runs: of the most important study, the first.

    Every trial that shares the chain's stages has the same values there, so its values serve them all. Where the span
    was chosen for a study, it is one of that study's.
    """
    waiting = list(_waiting_below(plan, plan.nodes[span.node], span.end))
    waiting = [key for key in waiting if key[0] == span.study] or waiting
    return min(waiting, key=lambda key: (-plan.studies[key[0]].priority, key))


def _waiting_below(plan: SearchPlan, node: Node, step: int) -> Iterable[TrialKey]:
    """The trials of running studies that wait for a result at `step` in the node, or else for one beyond it."""
    here = [key for key in node.waiting.get(step, ()) if _runs(plan, key)]
    if here:
        return here
    for found in plan.beyond(node, step - 1):
        later = [key for at, keys in found.waiting.items() if at > step for key in keys if _runs(plan, key)]
        if later:
            return later
    return ()


def _runs(plan: SearchPlan, key: TrialKey) -> bool:
    return plan.studies[key[0]].is_running


def assign(
    frontier: Frontier, spans: Sequence[Span], stages: tuple[Stage, ...], intermediate_bytes: int
) -> ChainAssignment:
    """The assignment of a chain of these spans, which must be trained as `stages`."""
    plan, is_alone = frontier.plan, frontier.plan.nodes[spans[0].node].alone
    trial = plan.trial(lead_trial(plan, spans[-1]))
    return replace(
        assignment_of(frontier, trial, stages, resume_point(plan, spans[0])),
        packing=plan.packing or 0,
        inputs=tuple(plan.studies[trial.study].inputs),
        intermediate_bytes=0 if is_alone else intermediate_bytes,
        alone=is_alone,
        patient=_is_patient(plan, trial, spans),
        branch_points=branch_points(frontier, spans),
        branches_inside=tuple(frontier.upcoming.inside(span.node, span.start, span.end) for span in spans),
    )


def _is_patient(plan: SearchPlan, trial: Trial, spans: Sequence[Span]) -> bool:
    """Where something has failed before, or would not be tried again, a slow step must not be taken for a hang."""
    return not plan.studies[trial.study].max_restarts or any(plan.nodes[span.node].failures for span in spans)


def assignment_of(
    frontier: Frontier, trial: Trial, stages: tuple[Stage, ...], resume: ResumePoint | None
) -> ChainAssignment:
    """These stages as one trial's values train them, from a state or from step 0."""
    plan, study = frontier.plan, frontier.plan.studies[trial.study]
    assert plan.opened is not None
    return ChainAssignment(
        plan=frontier.id,
        trainer=plan.opened.trainer,
        trainer_version=plan.opened.trainer_version,
        trainer_args=plan.opened.trainer_args,
        seed=plan.opened.seed,
        determinism=plan.opened.determinism,
        study=study.id,
        trial=trial.number,
        hp=trial.hp,
        stages=stages,
        resume=resume,
        begin=None if resume else begin_of(plan, study),
        runtime_args=study.runtime_args,
    )


def begin_of(plan: SearchPlan, study: Study) -> dict[str, Any] | None:
    """What a chain at step 0 begins with. A study on a plan that begins with weights says where they are."""
    if study.begin is None:
        return None
    return {name: study.begin[name] for name in ("key", "sha256", "state")}


def branch_points(frontier: Frontier, spans: Sequence[Span]) -> tuple[int, ...]:
    """The numbers of the spans at whose ends other stages can begin than the next one of the chain."""
    last = len(spans) - 1
    return tuple(at for at, children in enumerate(frontier.children(spans)) if children > (at < last))


def resume_point(plan: SearchPlan, first: Span) -> ResumePoint | None:
    """The checkpoint at which a chain begins; None for step 0."""
    node = plan.nodes[first.node]
    if first.start not in node.resumable:
        if node.parent is None:
            return None
        node = plan.nodes[node.parent]
    checkpoint = node.checkpoints[first.start]
    return ResumePoint(node.id, first.start, checkpoint.key, checkpoint.sha256)
