"""The time that a plan takes on equal slots if nothing is requested later: list scheduling of the stage tree.

Nothing is decided by results, so the scheduler's ticks need not be played: a slot takes the beginning of the longest
remaining path, and runs that path to its end (TreeML §4.3). Where other paths branch off, they can begin as soon as the
stage before them is complete. `app.simulation.simulator` plays the same with the real scheduler, and tests compare the
two.

In whichever order slots take work, as long as none is idle while there is any, the time is between `total / slots` and
`total / slots + longest`, where `longest` is the longest path (Graham, Bounds for certain multiprocessing anomalies,
1966).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId, Place


@dataclass(slots=True, eq=False)
class _Stage:
    """A stage of the tree, which begins where its parent ends."""

    node: NodeId
    start: int
    seconds: float
    following: list[_Stage] = field(default_factory=list)
    left: float = 0.0
    """The seconds of the longest path that begins with the stage."""


class ListScheduling:
    """The requests of a plan without averages, none of which may be trained yet."""

    def __init__(self, plan: SearchPlan, seconds_per_step: Callable[[Node], float]) -> None:
        self.plan = plan
        self._roots = list[_Stage]()
        self._stages = self._build_tree(seconds_per_step)
        for stage in reversed(self._stages):  # children first
            stage.left = stage.seconds + max((each.left for each in stage.following), default=0.0)
        self._ready: list[tuple[float, str, int, _Stage]] = []
        self._running: list[tuple[float, int, _Stage]] = []
        self._begun, self._now = 0, 0.0

    def _build_tree(self, seconds_per_step: Callable[[Node], float]) -> list[_Stage]:
        """The stages, parents first. `build_stage_tree` has the same for such a plan, but looks at states."""
        stages, nodes = dict[Place, _Stage](), self.plan.nodes
        for node in nodes.values():
            before = None if node.parent is None else stages[node.parent, node.start]
            start, pace = node.start, seconds_per_step(node)
            for end in sorted({*node.waiting, *(nodes[child].start for child in node.children)}):
                stage = stages[node.id, end] = _Stage(node.id, start, (end - start) * pace)
                (self._roots if before is None else before.following).append(stage)
                before, start = stage, end
        return list(stages.values())

    @property
    def total(self) -> float:
        """The seconds of all stages."""
        return sum(stage.seconds for stage in self._stages)

    @property
    def longest(self) -> float:
        """The seconds of the longest path."""
        return max((stage.left for stage in self._roots), default=0.0)

    def makespan(self, slots: int) -> float:
        """The seconds until all is trained."""
        for stage in self._roots:
            self._offer(stage)
        while self._ready or self._running:
            while self._ready and len(self._running) < slots:
                self._begin(heapq.heappop(self._ready)[-1])
            self._now, _, stage = heapq.heappop(self._running)
            self._complete(stage)
        return self._now

    def _offer(self, stage: _Stage) -> None:
        """The stage may begin on any slot. Longer paths come first."""
        heapq.heappush(self._ready, (-stage.left, stage.node, stage.start, stage))

    def _begin(self, stage: _Stage) -> None:
        self._begun += 1
        heapq.heappush(self._running, (self._now + stage.seconds, self._begun, stage))

    def _complete(self, stage: _Stage) -> None:
        """The slot continues with the longest path. Among equally long ones, it stays in the node."""
        if not (following := stage.following):
            return
        onward = following[0]
        if len(following) > 1:
            onward = min(following, key=lambda each: (-each.left, each.node != stage.node, each.node))
        self._begin(onward)
        for other in following:
            if other is not onward:
                self._offer(other)
