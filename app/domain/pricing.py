"""The price of a trial in steps, before it is requested.

It follows exactly from node ids: trials share the nodes with equal ids.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from app.domain import schedule
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import NodeId, TrialState
from stagetree.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a trial of `steps` steps.

    shared: trained already, or requested by other trials of the study. new: the others. again: trained again because
    no state is kept where the new ones begin.
    """

    steps: int
    shared: int
    new: int
    again: int


class NodeProgress(Protocol):
    """The last trained step of a node, and its steps with saved states and with metrics."""

    @property
    def reached(self) -> int: ...
    @property
    def resumable(self) -> Iterable[int]: ...
    @property
    def metrics(self) -> Container[int]: ...


def price(plan: SearchPlan, study: Study, paths: Collection[Mapping[NodeId, int]], steps: int) -> Price:
    """The price of a trial. paths: for each repeat, its nodes with their starts, root first."""
    requested = ChainMap[NodeId, int]({}, {} if study.is_final else study.max_step_by_node)
    total, new, again = steps * len(paths), 0, 0
    for path in paths:
        path_new, path_again = _count_steps(plan.nodes, requested, path.items(), steps)
        new, again = new + path_new, again + path_again
        requested.update(zip(path, [*list(path.values())[1:], steps], strict=True))
    return Price(total, total - new, new, again)


def _count_steps(
    nodes: Mapping[NodeId, NodeProgress],
    requested: Mapping[NodeId, int],
    path: Iterable[tuple[NodeId, int]],
    steps: int,
) -> tuple[int, int]:
    """The new steps on a path, and the steps that are trained again. path: the nodes with their starts."""
    following = iter(path)
    upcoming = next(following, None)
    new, resumed = 0, 0 if upcoming is None else upcoming[1]
    needed: int | None = None  # the step whose state training must begin with
    node: NodeProgress | None = None
    while upcoming is not None:
        name, start = upcoming
        node = nodes.get(name)
        if node is None and name not in requested:  # nor is any node below it, so none of them needs its name
            return new + steps - start, (start if needed is None else needed) - resumed
        upcoming = next(following, None)
        end = steps if upcoming is None else upcoming[1]
        trained = start if node is None else max(start, min(end, node.reached))
        reached = max(trained, min(end, requested.get(name, 0)))
        new += end - reached
        if needed is None and node is not None:
            resumed = max((step for step in node.resumable if step <= trained), default=resumed)
        if needed is None and trained < end:
            needed = trained if reached == trained else resumed  # requested steps will leave a state
    if needed is None and node is not None and steps not in node.metrics:
        needed = steps  # not evaluated yet
    return new, max(0, (needed or 0) - resumed)


@dataclass(frozen=True, slots=True)
class TrainedNode:
    """A snapshot of a node's progress."""

    reached: int
    resumable: tuple[int, ...]
    metrics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainedTree:
    """A snapshot of the nodes that a study can share; empty if its trials share nothing.

    asked: the study's last requested step in each node. left: the steps of `max_total_steps` that are neither run nor
    needed by active trials; infinite without that budget.
    """

    nodes: Mapping[NodeId, TrainedNode]
    asked: Mapping[NodeId, int]
    left: float = inf

    def price(self, configuration: Mapping[str, Sequence], steps: int) -> int:
        """The steps that a trial of the study would train. Raises `stagetree.sequences.SequenceError`."""
        return sum(_count_steps(self.nodes, self.asked, schedule.walk(configuration, steps), steps))


EMPTY_TREE = TrainedTree({}, {})


def trained_tree(plan: SearchPlan, study: Study) -> TrainedTree:
    """A snapshot of the plan for a study."""
    left = _steps_left(plan, study)
    if study.isolated or not study.spec.merge:
        return replace(EMPTY_TREE, left=left)
    nodes = {
        name: TrainedNode(node.reached, tuple(sorted(node.resumable)), tuple(node.metrics))
        for name, node in plan.nodes.items()
    }
    return TrainedTree(nodes, dict(study.max_step_by_node), left)


def _steps_left(plan: SearchPlan, study: Study) -> float:
    """The steps of the study's budget that are neither run nor needed by its active trials."""
    if (most := study.spec.max_total_steps) is None:  # avoids a loop over many trials
        return inf
    asked = dict[NodeId, int]()
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            asked.update((name, max(end, asked.get(name, 0))) for name, end in plan.path_ends(trial))
    waiting = sum(max(0, end - plan.nodes[name].reached) for name, end in asked.items())
    return float(max(0, most - study.executed - waiting))
