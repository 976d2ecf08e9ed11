"""What people are shown of a search plan: its nodes, the stages that are outstanding, and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from app.domain import search_plan
from app.domain import stage_tree as tree
from app.domain.events import Metrics
from app.domain.search_plan import SearchPlan, Study
from app.events import StoredEvent
from app.events.codec import encode
from app.service.views.writable import form_text, writable
from stagetree.models.service import Event
from stagetree.models.trials import Node, Place, Plan, Point, Running, Stage, StageTree, Waiting


def _finite(metrics: Mapping[str, float | None]) -> Metrics:
    return {name: value if value is not None and isfinite(value) else None for name, value in metrics.items()}


def point(step: int, metrics: Mapping[str, float | None]) -> Point:
    """The metrics after a step; None for those that are no finite numbers."""
    return Point(step=step, metrics=writable(_finite(metrics)))


def plan(plan: SearchPlan, stream: str) -> Plan:
    """The whole search plan, with all studies on it."""
    opened = plan.opened
    assert opened is not None
    return Plan(
        plan=stream,
        trainer=opened.trainer,
        trainer_version=opened.trainer_version,
        trainer_args=opened.trainer_args,
        seed=opened.seed,
        studies=[study.id for study in plan.studies.values() if not study.deleted],
        nodes=[_node(plan, node) for node in plan.nodes.values()],
    )


def _node(plan: SearchPlan, node: search_plan.Node) -> Node:
    waiting = ((step, key) for step in sorted(node.waiting) for key in sorted(node.waiting[step]))
    return Node(
        id=node.id,
        parent=node.parent,
        start=node.start,
        forms={name: form_text(form) for name, form in sorted(node.segment.forms.items())},
        studies=[each.id for each in plan.studies.values() if node.id in each.max_step_by_node and not each.deleted],
        checkpoints=sorted(node.checkpoints),
        metrics=[point(step, node.metrics[step]) for step in sorted(node.metrics)],
        waiting=[Waiting(step=step, study=study, trial=number) for step, (study, number) in waiting],
        running=[
            Running(chain=chain, start=start, end=end) for (chain, _), (start, end) in sorted(node.running.items())
        ],
    )


def stage_tree(plan: SearchPlan, study: Study) -> StageTree:
    """The outstanding stages that serve the study, parents first."""
    stages = tree.build_stage_tree(plan)
    serving = _serving(plan, study, stages)
    wanted = [stage for stage in stages if (stage.node, stage.end) in serving]
    return StageTree(stages=[_stage(stage) for stage in wanted], critical_path_steps=tree.critical_path_steps(wanted))


def _serving(plan: SearchPlan, study: Study, stages: Sequence[tree.TreeStage]) -> set[tree.Place]:
    """The ends of the stages that lead to a step for which a trial of the study waits."""
    ending = {(stage.node, stage.end): stage for stage in stages}
    found: set[tree.Place] = set()
    for name in study.max_step_by_node:
        for step, keys in plan.nodes[name].waiting.items():
            place: tree.Place | None = (name, step) if any(key[0] == study.id for key in keys) else None
            while place in ending and place not in found:
                found.add(place)
                place = ending[place].parent
    return found


def _stage(stage: tree.TreeStage) -> Stage:
    parent = None if stage.parent is None else Place(node=stage.parent[0], step=stage.parent[1])
    return Stage(node=stage.node, start=stage.start, end=stage.end, parent=parent, ready=stage.ready)


# -------------------------------------------------------------------------------------------------------------- events


def event(recorded: StoredEvent, before: int) -> Event:
    """A fact in its place: in its study, which was submitted behind version `before` of its plan, and in the plan."""
    name, _, data = encode(recorded.event)
    position, version = recorded.version - before, recorded.version
    return Event(
        position=position, version=version, type=name, data=writable(data), at=recorded.at, by=recorded.by or ""
    )
