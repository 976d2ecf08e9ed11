"""Targets that evaluations reach between two results of a trial.

With `target_at: evaluations`, a study ends once an evaluation of `eval_every` is as good as its target. Trials of such
studies are ranked by the best result on their way, whose state is kept. `app.domain.evolve` calls these functions.
"""

from __future__ import annotations

from app.domain import events as e
from app.domain.search_plan import Node, SearchPlan, Study, TargetReached, Trial
from app.domain.terms import TrialState

RANKED = (TrialState.ACTIVE, TrialState.COMPLETED)


def await_target(plan: SearchPlan, study: Study) -> None:
    """Let evaluations reach the target of a study that begins or is reopened, also earlier ones."""
    study.target_reached = None
    plan.awaiting_target.pop(study.id, None)
    if study.spec.evaluations_reach_target:
        plan.awaiting_target[study.id] = None
        for trial in study.trials:
            note_known_evaluations(plan, trial)


def note_evaluation(plan: SearchPlan, node: Node, step: int) -> None:
    """Note an evaluation that reaches the targets of studies that request it."""
    for study in [plan.studies[name] for name in plan.awaiting_target]:
        if step <= study.max_step_by_node.get(node.id, -1) and _reaches_target(study, node, step):
            passing = (trial for trial in study.trials if node.id in trial.path and _passes_between(trial, step))
            if (first := next(passing, None)) is not None:
                _note(plan, first, node, step)


def note_known_evaluations(plan: SearchPlan, trial: Trial) -> None:
    """Note the first evaluation on a trial's path that reaches the target of its study."""
    study = plan.studies[trial.study]
    if study.id not in plan.awaiting_target:
        return
    steps = (step for step, _ in plan.curve(trial) if _passes_between(trial, step))
    known = ((plan.nodes_of(trial, step)[0], step) for step in steps)
    if reaching := next((place for place in known if _reaches_target(study, *place)), None):
        _note(plan, trial, *reaching)


def may_reach_target(plan: SearchPlan, event: e.TrialAdded | e.TrialExtended) -> bool:
    """Whether evaluations in the nodes of a requested trial reach the target of its study.

    The request may not be in the plan itself. Evaluations behind the trial's branch count as well.
    """
    study = plan.studies[event.study]
    if study.id not in plan.awaiting_target:
        return False
    last = (trial.path[-1] for trial in study.trials[event.trial : event.trial + 1])
    nodes = [plan.nodes[name] for name in (*last, *event.path) if name in plan.nodes]
    return any(step < event.steps and _reaches_target(study, node, step) for node in nodes for step in node.metrics)


def _reaches_target(study: Study, node: Node, step: int) -> bool:
    spec = study.spec
    return spec.target is not None and spec.evaluates(step) and spec.objectives.reaches(spec.target, node.metrics[step])


def _passes_between(trial: Trial, step: int) -> bool:
    """Whether the trial may pass the step, and its tuner did not request it: requested steps have results."""
    is_open = trial.state in RANKED and not trial.is_retried
    return is_open and step < trial.steps and step not in trial.requested_steps


def _note(plan: SearchPlan, trial: Trial, node: Node, step: int) -> None:
    study = plan.studies[trial.study]
    value = node.metrics[step][study.spec.metric]
    assert value is not None, "it reached the target"
    study.target_reached = TargetReached(trial.number, step, value)
    del plan.awaiting_target[study.id]
