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
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice

from app.domain.ids import ChainId, NodeId, PlanId
from app.domain.search_plan import Chain, Node, SearchPlan
from app.domain.stage_tree import Place
from app.scheduling.costs import Costs
from app.scheduling.ranking import Ranking, Urgency

NOTHING = NodeId("")
"""Where roots begin: the state of this node at step 0 is always at hand."""

UNNAMED = PlanId("")

MOST_ESTIMATES = 100
"""How many nodes are looked at again in one refresh because their cost was estimated anew: the others come later."""


@dataclass(frozen=True, slots=True)
class Need:
    """Reach `step`, resuming at `cut`; `urgency` is that of what is to be done from there on, this included."""

    step: int
    cut: int
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a node between two places that someone needs: a stage, before anyone is charged for it."""

    node: NodeId
    start: int
    end: int


class Frontier:
    """Heads and demands of the plan `id`; call `refresh` after events were folded into it."""

    def __init__(self, plan: SearchPlan, costs: Costs | None = None, *, id: PlanId = UNNAMED) -> None:
        self.plan, self.id = plan, id
        self._costs = costs or Costs()
        self._demand: dict[NodeId, dict[int, Urgency]] = {}  # of each cut inside a node, or at its beginning
        self._branches: dict[NodeId, dict[int, Ranking[NodeId]]] = defaultdict(dict)  # children with demand, by start
        self._kept: dict[NodeId, frozenset[int]] = {}  # the steps at which the state of each node is kept
        self._ready: Ranking[tuple[int, NodeId]] = Ranking()  # the states at hand from which something is to be done
        self._nodes: list[NodeId] = []  # of the plan, each before its children
        self._outdated = 0  # of these, how many have estimates that changed since they were looked at
        self._pending = set(plan.nodes)  # nodes to be looked at again; one leaves when that is done, and not before
        self.affected: set[ChainId] = set()  # chains whose nodes were looked at again; whoever tells them empties it

    @property
    def is_behind(self) -> bool:
        """Whether something was folded into the plan that was not taken in yet."""
        return bool(self.plan.touched or self._pending)

    def refresh(self) -> None:
        """Take in what changed in the plan since the last call. What could not be taken in is, the next time."""
        new = islice(reversed(self.plan.nodes), len(self.plan.nodes) - len(self._nodes))
        self._nodes += reversed(list(new))
        if self._costs.refit(self.plan):
            self._outdated = len(self._nodes)
        self._take_in_events()
        for _ in range(min(self._outdated, MOST_ESTIMATES)):
            self._outdated -= 1  # children first: only urgencies change, and the parent's turn will come
            self._update(self.plan.nodes[self._nodes[self._outdated]])

    def _take_in_events(self) -> None:
        nodes = self.plan.nodes
        self._pending.update(name for name in self.plan.touched if name in nodes)  # else it was set aside
        self.plan.touched.clear()
        queue = [(-nodes[name].start, name) for name in self._pending]
        heapq.heapify(queue)  # children begin after their parents, so each node is looked at once
        while queue:
            name = heapq.heappop(queue)[1]
            parent = self._update(nodes[name])
            self.affected.update(chain for chain, _ in nodes[name].running)
            self._pending.discard(name)
            if parent is not None and parent not in self._pending:
                self._pending.add(parent)
                heapq.heappush(queue, (-nodes[parent].start, parent))
        self._pending = set()  # a set that was large once is slow to walk through for ever

    def heads(self) -> Iterator[Place]:
        """Where a slot may begin, in no particular order."""
        for step, name in self._ready:
            if name and step in self._demand[name]:
                yield (name, step)
            if branch := self._branches[name].get(step):
                yield from ((child, step) for child in branch)

    def urgency(self, head: Place) -> Urgency:
        """How urgent the most urgent path from a head is."""
        return self._demand[head[0]][head[1]]

    def longest(self, passed_over: Container[Place] = ()) -> Place | None:
        """The head with the most urgent path that is not passed over, ties to the earlier step."""
        top = self._ready.top()
        first = top and self._first(top[1][1], top[1][0])
        if first is None or first not in passed_over:
            return first
        others = [head for head in self.heads() if head not in passed_over]
        return max(others, key=lambda head: (self.urgency(head), -head[1], head[0]), default=None)

    def path(self, head: Place) -> list[Span]:
        """The most urgent path from a head to the end, cut at every need on its way.

        Of equal ones, that which stays in the node for longest: whoever branches on the way can begin the sooner.
        """
        spans: list[Span] = []
        place: Place | None = head
        while place is not None:
            name, start = place
            needs = [need for need in self._needs(self.plan.nodes[name]) if need.cut == start]
            target = max(needs, key=lambda need: (need.urgency, need.step)).step
            for need in needs:
                if need.step <= target:
                    spans.append(Span(name, start, need.step))
                    start = need.step
            branch = self._branches[name].get(target)
            onward = branch and branch.top()
            place = (onward[1], target) if onward else None
        return spans

    def children(self, span: Span) -> int:
        """How many stages could begin where this one ends."""
        beyond = any(need.step > span.end and need.cut <= span.end for need in self._needs(self.plan.nodes[span.node]))
        return len(self._branches[span.node].get(span.end, ())) + beyond

    def marks(self, chain: Chain) -> list[int]:
        """The steps inside the stages that a chain has before it at which someone needs more than it knew of.

        It should evaluate and keep its state there.
        """
        found: list[int] = []
        ahead = chain.stages[chain.index :]
        needed = {name: self._unkept(self.plan.nodes[name]) for name in {stage.node for stage in ahead}}
        for stage in ahead:
            steps = needed[stage.node]
            found += steps[bisect_right(steps, stage.start) : bisect_left(steps, stage.end)]
            if stage.end in self.plan.nodes[stage.node].waiting and stage.end not in stage.evaluate:
                found.append(stage.end)
        return found

    def _unkept(self, node: Node) -> list[int]:
        return sorted(self._wanted(node, lambda step: step not in node.checkpoints))

    # ------------------------------------------------------------------------------------ one node looked at again

    def _update(self, node: Node) -> NodeId | None:
        """Look at a node again; its parent if that must be looked at too."""
        before, demand = self._demand.get(node.id, {}), dict[int, Urgency]()
        for need in self._needs(node):
            demand[need.cut] = max(demand.get(need.cut, need.urgency), need.urgency)
        kept = frozenset(node.checkpoints)
        changed = self._kept.get(node.id, frozenset()) ^ kept
        if demand != before:
            changed |= {step for step, _ in before.items() ^ demand.items()}
        self._demand[node.id], self._kept[node.id] = demand, kept
        for step in changed:
            self._renew(node.id, step)
        first = demand.get(node.start)
        return None if first == before.get(node.start) else self._tell_parent(node, first)

    def _tell_parent(self, node: Node, demand: Urgency | None) -> NodeId | None:
        """A node has this demand at its beginning; the parent if it is there that the demand must be met."""
        parent = node.parent or NOTHING
        branch = self._branches[parent].get(node.start, Ranking())
        before = branch.top()
        branch.put(node.id, demand)
        if branch.top() == before:
            return None
        if branch:
            self._branches[parent][node.start] = branch
        else:
            del self._branches[parent][node.start]
        if self._is_at_hand(parent, node.start):
            self._renew(parent, node.start)
            return None
        return node.parent

    def _renew(self, name: NodeId, step: int) -> None:
        """What is to be done from a state has changed, or whether it is at hand."""
        first = self._first(name, step) if self._is_at_hand(name, step) else None
        self._ready.put((step, name), None if first is None else self.urgency(first))

    def _first(self, name: NodeId, step: int) -> Place | None:
        """The most urgent of the places that begin with this state: the node's own cut there, or a child."""
        own = self._demand.get(name, {}).get(step) if name and step > self.plan.nodes[name].start else None
        branch = self._branches[name].get(step)
        top = branch.top() if branch else None
        if top is None or (own is not None and own >= top[0]):
            return None if own is None else (name, step)
        return (top[1], step)

    def _is_at_hand(self, name: NodeId, step: int) -> bool:
        return name == NOTHING or step in self.plan.nodes[name].checkpoints

    # ------------------------------------------------------------------------------------------------------- needs

    def _needs(self, node: Node) -> list[Need]:
        """What must be reached in the node and by no stage under way, in order of steps."""
        if not node.waiting and not self._branches[node.id]:
            return []
        reach = _Reach(node)
        wanted = self._wanted(node, lambda step: not reach.covers(step) and step not in node.saving)
        cost, needs = self._costs.seconds_per_step(node) if wanted else 0.0, list[Need]()
        for step in sorted(wanted):
            cut, (priority, seconds) = reach.latest(step), wanted[step]
            needs.append(Need(step, cut, (priority, seconds + (step - cut) * cost)))
        return needs

    def _wanted(self, node: Node, counts: Callable[[int], bool]) -> dict[int, Urgency]:
        """Those steps that someone waits for or that children begin at, each with the urgency of what follows there."""
        wanted: dict[int, Urgency] = {}
        for step in filter(counts, node.waiting):
            for study in self.plan.wanted(node, step):
                urgency = (float(study.spec.get("priority", 1)), 0.0)
                wanted[step] = max(wanted.get(step, urgency), urgency)
        for step, branch in self._branches[node.id].items():
            if step not in node.checkpoints and counts(step) and (top := branch.top()):
                wanted[step] = max(wanted.get(step, top[0]), top[0])
        return wanted


class _Reach:
    """Where the state of a node is kept, or will be when the stages under way, which do not overlap, are over."""

    def __init__(self, node: Node) -> None:
        self._start = node.start
        self._running = sorted((end, start) for start, end in node.running.values())
        self._ends = [end for end, _ in self._running]
        self._states = sorted({*node.checkpoints, *node.saving, *self._ends})

    def covers(self, step: int) -> bool:
        """As `Node.covers`."""
        number = bisect_left(self._ends, step)
        if number == len(self._ends):
            return False
        end, start = self._running[number]
        return start < step or start == step == end

    def latest(self, step: int) -> int:
        """As `stage_tree.latest`, or the beginning of the node."""
        number = bisect_right(self._states, step)
        return self._states[number - 1] if number else self._start
