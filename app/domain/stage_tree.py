"""Algorithm 1 of the TreeML paper: the stages that are outstanding now, rebuilt from the plan and never stored.

This is the definition, written to be read. The scheduler keeps the same answer up to date from event to event
(`app.scheduling.frontier`), and is tested against this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from app.domain.ids import NodeId
from app.domain.search_plan import NO_PROGRESS, Node, Progresses, SearchPlan

Place = tuple[NodeId, int]
"""A node and a step in it, start < step; or a node and its start, for a root that begins from nothing."""


@dataclass(frozen=True, slots=True)
class TreeStage:
    """Train `node` from `start` to `end`.

    parent: the stage that ends where this one begins, None when it begins at a checkpoint, at step 0, or where a stage
    under way will end. ready: it can begin now.
    """

    node: NodeId
    start: int
    end: int
    parent: Place | None
    ready: bool


def build_stage_tree(plan: SearchPlan, progress: Progresses = NO_PROGRESS) -> list[TreeStage]:
    """The stage tree that serves every request of a running study which no stage under way will serve (BuildStageTree).

    What a stage under way has passed already, as far as `progress` tells, it will not serve.

    Stages come in an order in which a parent precedes its children; each is the part between two places that someone
    needs, so that no step is in two stages.
    """
    begins: dict[Place, Place] = {}  # the lookup table L: what must be reached -> where to resume for it
    for node in plan.nodes.values():
        for step in node.waiting:
            if any(plan.wanted(node, step)):
                _find_latest_checkpoint(plan, (node.id, step), begins, progress)
    return sorted(_build_tree(plan, begins), key=lambda stage: (stage.start, stage.end, stage.node))


def _find_latest_checkpoint(plan: SearchPlan, place: Place, begins: dict[Place, Place], progress: Progresses) -> None:
    """FindLatestCheckpoint, as a loop over the ancestors."""
    while place not in begins:
        node, step = plan.nodes[place[0]], place[1]
        if node.covers(step, progress) or step in node.saving:
            return
        resume = latest(node, step, progress)
        begins[place] = (node.id, node.start if resume is None else resume)
        if resume is not None or node.parent is None or node.start in plan.nodes[node.parent].resumable:
            return
        place = (node.parent, node.start)


def latest(node: Node, step: int, progress: Progresses = NO_PROGRESS) -> int | None:
    """The last step up to `step` at which the state of the node is kept, or will be when a stage under way is over."""
    return max((at for at in (*node.resumable, *node.coming(progress)) if at <= step), default=None)


def _build_tree(plan: SearchPlan, begins: dict[Place, Place]) -> Iterator[TreeStage]:
    """BuildTree: cuts what resumes at the same place where the next place begins, and hangs stages under stages."""
    reached: dict[Place, list[int]] = defaultdict(list)
    for (name, step), (_, resume) in begins.items():
        reached[name, resume].append(step)
    for (name, resume), steps in reached.items():
        node, start = plan.nodes[name], resume
        for end in sorted(steps):
            parent = (name, start) if start > resume else _entry(plan, node, start, begins)
            yield TreeStage(name, start, end, parent, parent is None and plan.can_begin(node, start))
            start = end


def _entry(plan: SearchPlan, node: Node, start: int, begins: dict[Place, Place]) -> Place | None:
    """The place that must be trained up to first, when `start` is the beginning of the node."""
    if node.parent is None or start > node.start or plan.can_begin(node, start):
        return None
    return (node.parent, start) if (node.parent, start) in begins else None


def critical_path_steps(stages: list[TreeStage]) -> int:
    """The most steps that one after another must be trained: no number of slots is faster."""
    ends: dict[Place, int] = {}
    for stage in stages:
        before = ends.get(stage.parent, 0) if stage.parent else 0
        ends[stage.node, stage.end] = before + stage.end - stage.start
    return max(ends.values(), default=0)
