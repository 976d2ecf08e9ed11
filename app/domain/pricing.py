"""The price of a trial in steps, before it is requested.

It follows exactly from node ids: trials share the nodes with equal ids.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    def metrics(self) -> Collection[int]: ...


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
    """A copy of a node's progress."""

    reached: int
    resumable: tuple[int, ...]
    metrics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainedTree:
    """The nodes that a study can share; empty if its trials share nothing. It changes with the plan.

    asked: the study's last requested step in each node. version: the plan's `progress_version`; prices of equal trees
    differ only by the study's own requests. left: the steps of `max_total_steps` that are neither run nor needed by
    active trials; infinite without that budget.
    """

    nodes: Mapping[NodeId, NodeProgress] = field(compare=False)
    asked: Mapping[NodeId, int] = field(compare=False)
    version: int = 0
    left: float = inf

    def price(self, configuration: Mapping[str, Sequence], steps: int) -> int:
        """The steps that a trial of the study would train. Raises `stagetree.sequences.SequenceError`."""
        return sum(_count_steps(self.nodes, self.asked, schedule.walk(configuration, steps), steps))

    def copy(self) -> TrainedTree:
        """The same, for use while the plan may change."""
        nodes = {
            name: TrainedNode(node.reached, tuple(node.resumable), tuple(node.metrics))
            for name, node in self.nodes.items()
        }
        return replace(self, nodes=nodes, asked=dict(self.asked))


EMPTY_TREE = TrainedTree({}, {})


def trained_tree(plan: SearchPlan, study: Study) -> TrainedTree:
    """The tree of a study, which costs nothing to make, however large the plan is."""
    left = _steps_left(plan, study)
    if study.isolated or not study.spec.merge:
        return replace(EMPTY_TREE, left=left)
    return TrainedTree(plan.nodes, study.max_step_by_node, plan.progress_version, left)


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
