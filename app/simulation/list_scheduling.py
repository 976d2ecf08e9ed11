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
from collections import defaultdict
from collections.abc import Callable

from app.domain.search_plan import Node, SearchPlan
from app.domain.stage_tree import Place, TreeStage, build_stage_tree


class ListScheduling:
    """The requests of a plan, none of which may be trained yet."""

    def __init__(self, plan: SearchPlan, seconds_per_step: Callable[[Node], float]) -> None:
        self.plan = plan
        self._following: dict[Place | None, list[TreeStage]] = defaultdict(list)
        self._seconds, self._left = dict[Place, float](), dict[Place, float]()
        stages = build_stage_tree(plan)
        for stage in stages:
            self._following[stage.parent].append(stage)
            self._seconds[_end(stage)] = (stage.end - stage.start) * seconds_per_step(plan.nodes[stage.node])
        for stage in reversed(stages):  # children first
            longest = max((self._left[_end(child)] for child in self._following[_end(stage)]), default=0.0)
            self._left[_end(stage)] = self._seconds[_end(stage)] + longest
        self._ready: list[tuple[float, str, int, TreeStage]] = []
        self._running: list[tuple[float, int, TreeStage]] = []
        self._begun, self._now = 0, 0.0

    @property
    def total(self) -> float:
        """The seconds of all stages."""
        return sum(self._seconds.values())

    @property
    def longest(self) -> float:
        """The seconds of the longest path."""
        return max(self._left.values(), default=0.0)

    def makespan(self, slots: int) -> float:
        """The seconds until all is trained."""
        for stage in self._following[None]:
            self._offer(stage)
        while self._ready or self._running:
            while self._ready and len(self._running) < slots:
                self._begin(heapq.heappop(self._ready)[-1])
            self._now, _, stage = heapq.heappop(self._running)
            self._complete(stage)
        return self._now

    def _offer(self, stage: TreeStage) -> None:
        """The stage may begin on any slot. Longer paths come first."""
        heapq.heappush(self._ready, (-self._left[_end(stage)], stage.node, stage.start, stage))

    def _begin(self, stage: TreeStage) -> None:
        self._begun += 1
        heapq.heappush(self._running, (self._now + self._seconds[_end(stage)], self._begun, stage))

    def _complete(self, stage: TreeStage) -> None:
        """The slot continues with the longest path. Among equally long ones, it stays in the node."""
        following = self._following.get(_end(stage), [])
        if not following:
            return
        onward = min(following, key=lambda each: (-self._left[_end(each)], each.node != stage.node, each.node))
        self._begin(onward)
        for other in following:
            if other is not onward:
                self._offer(other)


def _end(stage: TreeStage) -> Place:
    """A stage has its end as a key: no two end at one place."""
    return stage.node, stage.end
