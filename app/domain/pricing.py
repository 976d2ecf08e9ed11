"""The price of a trial, in steps, before anybody asks for one.

All of it is reckoned from names. Trials share the nodes that have the same name, and nothing is guessed.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from app.domain import schedule
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import NodeId, TrialState


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a trial of `steps` steps.

    shared: trained already, or asked for by other trials of the study. new: the others. again: trained once more, since
    no state is kept where the new ones begin.
    """

    steps: int
    shared: int
    new: int
    again: int


class NodeProgress(Protocol):
    """How far a node was trained, the steps at which its state is kept, and those at which it was evaluated."""

    @property
    def reached(self) -> int: ...
    @property
    def resumable(self) -> Iterable[int]: ...
    @property
    def metrics(self) -> Container[int]: ...


def price(plan: SearchPlan, study: Study, ways: Sequence[Mapping[NodeId, int]], steps: int) -> Price:
    """ways: of each repeat of the trial, the nodes that it passes, each with its start, root first."""
    asked_for = ChainMap[NodeId, int]({}, {} if study.is_final else study.max_step_by_node)
    total, new, again = steps * len(ways), 0, 0
    for way in ways:
        fresh, once_more = _price_of(plan.nodes, asked_for, way, steps)
        new, again = new + fresh, again + once_more
        asked_for.update(zip(way, [*list(way.values())[1:], steps], strict=True))
    return Price(total, total - new, new, again)


def _price_of(
    nodes: Mapping[NodeId, NodeProgress], asked_for: Mapping[NodeId, int], way: Mapping[NodeId, int], steps: int
) -> tuple[int, int]:
    """The steps that are new, and the steps that are trained once more."""
    ends, new, resumed = [*list(way.values())[1:], steps], 0, next(iter(way.values()), 0)
    needed: int | None = None  # the step whose state training must begin with
    node: NodeProgress | None = None
    for (name, start), end in zip(way.items(), ends, strict=True):
        node = nodes.get(name)
        trained = start if node is None else max(start, min(end, node.reached))
        reached = max(trained, min(end, asked_for.get(name, 0)))
        new += end - reached
        if needed is None and node is not None:
            resumed = max((step for step in node.resumable if step <= trained), default=resumed)
        if needed is None and trained < end:
            needed = trained if reached == trained else resumed  # steps asked for leave their state
    if needed is None and node is not None and steps not in node.metrics:
        needed = steps  # which was never evaluated
    return new, max(0, (needed or 0) - resumed)


@dataclass(frozen=True, slots=True)
class TrainedNode:
    """A node, as it was at one moment."""

    reached: int
    resumable: tuple[int, ...]
    metrics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainedTree:
    """The nodes of a plan, as a study finds them at one moment; no nodes for one whose trials share nothing.

    asked: the last step of each node that the study asked for. left: the steps of its `max_total_steps` that are not
    run, and that no trial under way will take; infinite without that budget.
    """

    nodes: Mapping[NodeId, TrainedNode]
    asked: Mapping[NodeId, int]
    left: float = inf

    def price(self, hp: Mapping[str, Any], steps: int) -> int:
        """The steps that would be trained for a trial of the study with these hyper-parameters, in JSON.

        Raises `stagetree.sequences.SequenceError`.
        """
        return sum(_price_of(self.nodes, self.asked, schedule.path(hp, steps, ""), steps))


EMPTY_TREE = TrainedTree({}, {})


def trained_tree(plan: SearchPlan, study: Study) -> TrainedTree:
    """The whole plan, as the study finds it now."""
    left = _steps_left(plan, study)
    if study.isolated or not study.merges:
        return replace(EMPTY_TREE, left=left)
    nodes = {
        name: TrainedNode(node.reached, tuple(sorted(node.resumable)), tuple(node.metrics))
        for name, node in plan.nodes.items()
    }
    return TrainedTree(nodes, dict(study.max_step_by_node), left)


def _steps_left(plan: SearchPlan, study: Study) -> float:
    """The steps of the study's budget that it has not run, and that none of its trials under way will take."""
    if (most := study.spec.get("max_total_steps")) is None:  # there may be many trials to look at
        return inf
    asked = dict[NodeId, int]()
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            asked.update((name, max(end, asked.get(name, 0))) for name, end in plan.path_ends(trial))
    waiting = sum(max(0, end - plan.nodes[name].reached) for name, end in asked.items())
    return float(max(0, most - study.executed - waiting))
