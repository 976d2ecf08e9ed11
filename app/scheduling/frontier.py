"""The outstanding work of one plan, kept up to date from event to event: where a slot may begin, and what is longest.

`app.domain.stage_tree` defines the stage tree; rebuilding it for each decision would cost more with every trial. Here
only the nodes that an event touched, and their ancestors as long as their answer changes, are looked at again.

A *need* is a step that must be reached in a node: a request, or the beginning of a child with needs of its own. Each
need resumes at a *cut*: the latest checkpoint before it, or the node's beginning. The *demand* of a cut is the urgency
of the most urgent path that begins there: the highest priority first, then the longest time (TreeML §4.3, critical
path). A cut with demand whose state is at hand is a *head*.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from app.domain.ids import NodeId
from app.domain.search_plan import Node, SearchPlan
from app.domain.stage_tree import Place, latest
from app.scheduling.costs import Costs

Urgency = tuple[float, float]
"""(priority of the most important study served, seconds of training on the longest path for that priority)"""


@dataclass(frozen=True, slots=True)
class Need:
    """Reach `step`, resuming at `cut`; `beyond` is the urgency of what follows there."""

    step: int
    cut: int
    beyond: Urgency


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a node between two places that someone needs: a stage, before anyone is charged for it."""

    node: NodeId
    start: int
    end: int


class Frontier:
    """Heads and demands of one plan; call `refresh` after events were folded into it."""

    def __init__(self, plan: SearchPlan, costs: Costs | None = None) -> None:
        self.plan = plan
        self.heads: dict[Place, Urgency] = {}
        self._costs = costs or Costs()
        self._demand: dict[NodeId, dict[int, Urgency]] = {}
        self._open: dict[NodeId, dict[int, dict[NodeId, Urgency]]] = defaultdict(dict)
        self._heap: list[tuple[float, float, int, NodeId]] = []
        plan.touched.update(plan.nodes)

    def refresh(self) -> None:
        """Take in what changed in the plan since the last call."""
        if self._costs.refit(self.plan):
            self.plan.touched.update(self._demand)
        queue = [(-self.plan.nodes[name].start, name) for name in self.plan.touched]
        self.plan.touched.clear()
        heapq.heapify(queue)  # children begin after their parents, so each node is looked at once
        seen: set[NodeId] = set()
        while queue:
            name = heapq.heappop(queue)[1]
            if name not in seen:
                seen.add(name)
                if (parent := self._update(self.plan.nodes[name])) is not None:
                    heapq.heappush(queue, (-self.plan.nodes[parent].start, parent))

    def longest(self) -> Place | None:
        """The head with the most urgent path, ties to the earlier step and the smaller name."""
        while self._heap:
            priority, seconds, step, node = self._heap[0]
            if self.heads.get((node, step)) == (-priority, -seconds):
                return (node, step)
            heapq.heappop(self._heap)
        return None

    def path(self, head: Place) -> list[Span]:
        """The most urgent path from a head to the end, cut at every need on its way."""
        spans: list[Span] = []
        place: Place | None = head
        while place is not None:
            node, start = self.plan.nodes[place[0]], place[1]
            needs = sorted((need for need in self._needs(node) if need.cut == start), key=lambda need: need.step)
            target = max(needs, key=lambda need: self._urgency(node, need)).step
            for need in needs:
                if need.step <= target:
                    spans.append(Span(node.id, start, need.step))
                    start = need.step
            place = self._onward(node, target)
        return spans

    def children(self, span: Span) -> int:
        """How many stages could begin where this one ends."""
        node = self.plan.nodes[span.node]
        beyond = any(need.step > span.end and need.cut <= span.end for need in self._needs(node))
        return len(self._open[span.node].get(span.end, ())) + beyond

    def covered(self, node: Node) -> Iterator[int]:
        """The steps needed in a node that a stage under way passes: it should evaluate and save there."""
        wanted = {step for step in node.waiting if any(self.plan.wanted(node, step))}
        branches = {step for step, children in self._open[node.id].items() if children}
        yield from (step for step in sorted(wanted | branches) if node.covers(step) and step not in node.checkpoints)

    def _onward(self, node: Node, step: int) -> Place | None:
        children = self._open[node.id].get(step)
        if not children:
            return None
        child = max(children, key=lambda name: (children[name], name))
        return (child, step)

    def _update(self, node: Node) -> NodeId | None:
        """Look at a node again; its parent if that must be looked at too."""
        before = self._demand.get(node.id, {})
        now: dict[int, Urgency] = {}
        for need in self._needs(node):
            now[need.cut] = max(now.get(need.cut, (0.0, -1.0)), self._urgency(node, need))
        self._demand[node.id] = now
        self._renew_heads(node, before, now)
        return self._tell_parent(node, now.get(node.start))

    def _renew_heads(self, node: Node, before: dict[int, Urgency], now: dict[int, Urgency]) -> None:
        for cut in before.keys() | now.keys():
            place = (node.id, cut)
            if cut in now and self._is_at_hand(node, cut):
                if self.heads.get(place) != now[cut]:
                    self.heads[place] = now[cut]
                    heapq.heappush(self._heap, (-now[cut][0], -now[cut][1], cut, node.id))
            else:
                self.heads.pop(place, None)

    def _tell_parent(self, node: Node, demand: Urgency | None) -> NodeId | None:
        if node.parent is None:
            return None
        children = self._open[node.parent].setdefault(node.start, {})
        if children.get(node.id) == demand:
            return None
        if demand is None:
            del children[node.id]
        else:
            children[node.id] = demand
        return node.parent

    def _needs(self, node: Node) -> Iterator[Need]:
        beyond: dict[int, Urgency] = {}
        for step in node.waiting:
            for study in self.plan.wanted(node, step):
                priority = float(study.spec.get("priority", 1))
                beyond[step] = max(beyond.get(step, (0.0, 0.0)), (priority, 0.0))
        for step, children in self._open[node.id].items():
            if children and step not in node.checkpoints:
                beyond[step] = max(beyond.get(step, (0.0, 0.0)), *children.values())
        for step, urgency in beyond.items():
            if not node.covers(step) and step not in node.saving:
                resume = latest(node, step)
                yield Need(step, node.start if resume is None else resume, urgency)

    def _urgency(self, node: Node, need: Need) -> Urgency:
        priority, seconds = need.beyond
        return (priority, seconds + (need.step - need.cut) * self._costs.seconds_per_step(node))

    def _is_at_hand(self, node: Node, step: int) -> bool:
        if step > node.start:
            return step in node.checkpoints
        return node.parent is None or step in self.plan.nodes[node.parent].checkpoints
