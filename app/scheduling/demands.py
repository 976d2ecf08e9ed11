"""The demand at every place of a plan: the work that begins there, for each study, and its urgency.

A *need* is a step that must be reached in a node: a request, or the start of a child with needs of its own. Each need
resumes at the latest checkpoint before it, or at the node's start: its *resume step*. The *demand* at a resume step is,
for each study with needs there, the urgency of its most urgent path that begins there: the trial of the highest
priority first, then the longest time (TreeML §4.3, critical path). A resume step with demand whose state is at hand is
a *head*.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from app.domain.search_plan import Node, Progresses, SearchPlan
from app.domain.stage_tree import Place
from app.domain.terms import ChainId, NodeId, StudyId
from app.process.garbage_collection import TrackedDict
from app.scheduling.costs import Costs

Urgency = tuple[float, float]
"""(priority, seconds of training on the longest path for that priority): of trials in a study, or of studies"""

Urgencies = dict[StudyId, Urgency]
"""How urgent something is to each study that wants it."""

Key = TypeVar("Key", bound=Any)


class Ranking(Generic[Key]):
    """Keys that can be ordered, each with its urgency; ties go to the smaller key."""

    __slots__ = ("_heap", "_urgency")

    def __init__(self) -> None:
        self._urgency = TrackedDict[Key, Urgency]()
        self._heap: list[tuple[float, float, Key]] = []  # some of it out of date, as far as that is not in the way

    def set_urgency(self, key: Key, urgency: Urgency | None) -> None:
        """The key is so urgent now; None takes it out."""
        if urgency is None:
            self._urgency.pop(key, None)
        elif self._urgency.get(key) != urgency:
            self._urgency[key] = urgency
            if len(self._heap) > 2 * len(self._urgency):
                self._heap = [(-priority, -seconds, item) for item, (priority, seconds) in self._urgency.items()]
                heapq.heapify(self._heap)
            else:
                heapq.heappush(self._heap, (-urgency[0], -urgency[1], key))

    def top(self) -> tuple[Urgency, Key] | None:
        """The most urgent key."""
        while self._heap:
            priority, seconds, key = self._heap[0]
            if self._urgency.get(key) == (-priority, -seconds):
                return (-priority, -seconds), key
            heapq.heappop(self._heap)
        return None

    def __iter__(self) -> Iterator[Key]:
        return iter(self._urgency)

    def __len__(self) -> int:
        return len(self._urgency)


def raise_to(urgencies: Urgencies, others: Urgencies) -> None:
    """Each study's urgency becomes the higher of the two."""
    for study, urgency in others.items():
        urgencies[study] = max(urgencies.get(study, urgency), urgency)


class ChildQueue:
    """The children of a node that start at one step, each with its demand there, by urgency."""

    def __init__(self) -> None:
        self._by_study: dict[StudyId, Ranking[NodeId]] = {}
        self._studies_of: dict[NodeId, frozenset[StudyId]] = {}

    def set_urgency(self, child: NodeId, demand: Mapping[StudyId, Urgency]) -> bool:
        """A child has this demand now; whether any study's most urgent one has changed."""
        changed = False
        for study in self._studies_of.pop(child, frozenset()) | demand.keys():
            ranking = self._by_study.setdefault(study, Ranking())
            before = ranking.top()
            ranking.set_urgency(child, demand.get(study))
            changed |= ranking.top() != before
            if not ranking:
                del self._by_study[study]
        if demand:
            self._studies_of[child] = frozenset(demand)
        return changed

    def top(self, study: StudyId) -> tuple[Urgency, NodeId] | None:
        """The most urgent child of a study."""
        return self._by_study[study].top() if study in self._by_study else None

    def tops(self) -> Urgencies:
        """How urgent the most urgent child of each study is."""
        return {study: top[0] for study, ranking in self._by_study.items() if (top := ranking.top())}

    def children(self, study: StudyId | None = None) -> Iterator[NodeId]:
        """The children that a study wants, or that any does."""
        return iter(self._studies_of if study is None else self._by_study.get(study, ()))

    def __bool__(self) -> bool:
        return bool(self._studies_of)


@dataclass(frozen=True, slots=True)
class Need:
    """Reach `step`, resuming at `resume_step`. urgencies: of the path from there on, this step included."""

    step: int
    resume_step: int
    urgencies: Urgencies


class Coverage:
    """The steps of a node whose state is kept, or will be after the stages under way, and the steps these will pass.

    It answers about any step without looking at all stages, also in a node with thousands of requests and stages.
    """

    def __init__(self, node: Node, progress: Progresses, in_flight: Iterable[int] = ()) -> None:
        self._start = node.start
        self._states = sorted({*node.resumable, *node.upcoming_states(progress), *in_flight})
        self._certain, ahead = set[int](), list[tuple[int, int]]()
        for (chain, _), (start, end) in node.running.items():
            position = progress.get(chain)
            self._certain.add(end)
            if position is not None:
                self._certain.update(step for step in position.saving if start < step < end)
            ahead.append((start if position is None else max(start, position.step), end))
        self._ahead = _join_demands(ahead)

    def covers(self, step: int) -> bool:
        """As `Node.covers`."""
        if step in self._certain:
            return True
        number = bisect_left(self._ahead, (step,)) - 1
        return number >= 0 and step < self._ahead[number][1]

    def latest(self, step: int) -> int:
        """As `stage_tree.latest`, or the beginning of the node."""
        number = bisect_right(self._states, step)
        return self._states[number - 1] if number else self._start


def _join_demands(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same steps strictly between the two ends of a span, by spans that do not overlap, in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


NOTHING = NodeId("")
"""Where roots begin: the state of this node at step 0 is always at hand."""

State = tuple[int, NodeId]
"""The state of a node at a step."""

InFlight = dict[ChainId, frozenset[Place]]
"""The states that are on their way to the store, of each chain: those that only its row knows of."""


class Demands:
    """The demands of a plan, as of the last update of each of its nodes.

    branches: the children with demand of each node, by the step at which they start. ready: by study, the states at
    hand from which it needs work; wanted_from: the same, by state.
    """

    def __init__(self, plan: SearchPlan, costs: Costs, progress: Progresses, in_flight: InFlight) -> None:
        self.branches: dict[NodeId, dict[int, ChildQueue]] = defaultdict(dict)
        self.ready: dict[StudyId, Ranking[State]] = {}
        self.wanted_from: dict[State, frozenset[StudyId]] = {}
        self._plan, self._costs, self._progress, self._in_flight = plan, costs, progress, in_flight
        self._demand: dict[NodeId, dict[int, Urgencies]] = {}  # by resume step, which is inside the node or its start
        self._kept: dict[NodeId, frozenset[int]] = {}  # the steps at which the state of each node is at hand

    def demand_at(self, place: Place) -> Urgencies:
        """The demand at a resume step; empty where there is none."""
        return self._demand.get(place[0], {}).get(place[1], {})

    def update(self, node: Node) -> set[NodeId]:
        """Look at a node again; the nodes that must be looked at too: its origins, and averages of its states."""
        before, demand = self._demand.get(node.id, {}), dict[int, Urgencies]()
        for need in self.needs(node):
            raise_to(demand.setdefault(need.resume_step, {}), need.urgencies)
        available_steps, averages = node.available_steps, self._plan.averages.get(node.id, {})
        changed = set(self._kept.get(node.id, frozenset()) ^ available_steps)
        also = {name for names in averages.values() for name in names}
        changed.update(step for step in before.keys() | demand.keys() if before.get(step) != demand.get(step))
        self._demand[node.id], self._kept[node.id] = demand, available_steps
        for step in changed:
            self._renew(node.id, step)
        if node.id in self._plan.means:
            also |= self._tell_origins(node, demand.get(node.start, {}))
        elif (first := demand.get(node.start, {})) != before.get(node.start, {}):
            also |= self._tell((node.parent or NOTHING, node.start), node, first)
        return also

    def revise(self, node: Node) -> set[NodeId]:
        """Estimate anew how long a node takes; the nodes that must be looked at again."""
        return self.update(node) if self._demand.get(node.id) and self._costs.revise(node) else set()

    def _tell_origins(self, average: Node, demand: Urgencies) -> set[NodeId]:
        """The demand of an average is met where its states are not kept; once they all are, it can begin."""
        plan, here = self._plan, (NOTHING, average.start)
        places = [here] if plan.can_begin(average, average.start) else plan.missing_states(average)
        changed = dict.fromkeys((*plan.origins(average), here), Urgencies()) | dict.fromkeys(places, demand)
        return {name for place, each in changed.items() for name in self._tell(place, average, each)}

    def _tell(self, place: Place, node: Node, demand: Urgencies) -> set[NodeId]:
        """A node has this demand where it begins; the node of that place if it is there that it must be met."""
        (name, step), branches = place, self.branches[place[0]]
        is_changed = branches.setdefault(step, ChildQueue()).set_urgency(node.id, demand)
        if not branches[step]:
            del branches[step]
        if is_changed and self._is_available(name, step):
            self._renew(name, step)
        return {name} if is_changed and not self._is_available(name, step) else set()

    def _renew(self, name: NodeId, step: int) -> None:
        """What must be done from a state has changed, or whether it is at hand."""
        state, urgencies = (step, name), Urgencies()
        if self._is_available(name, step):
            raise_to(urgencies, self._own(name, step))
            if branch := self.branches[name].get(step):
                raise_to(urgencies, branch.tops())
        for study in self.wanted_from.pop(state, frozenset()) | urgencies.keys():
            ready = self.ready.setdefault(study, Ranking())
            ready.set_urgency(state, urgencies.get(study))
            if not ready:
                del self.ready[study]
        if urgencies:
            self.wanted_from[state] = frozenset(urgencies)

    def _own(self, name: NodeId, step: int) -> Urgencies:
        """What must be done in the node itself from its state at a step."""
        if not name or step <= self._plan.nodes[name].start:
            return {}
        return self.demand_at((name, step))

    def first(self, study: StudyId, state: State) -> Place | None:
        """The most urgent place of a study that begins with this state: the node's own resume step, or a child."""
        step, name = state
        own, branch = self._own(name, step).get(study), self.branches[name].get(step)
        top = branch.top(study) if branch else None
        if top is None or (own is not None and own >= top[0]):
            return None if own is None else (name, step)
        return (top[1], step)

    def _is_available(self, name: NodeId, step: int) -> bool:
        return name == NOTHING or self._plan.nodes[name].is_available(step)

    def needs(self, node: Node) -> list[Need]:
        """What must be reached in the node and by no stage under way, in order of steps."""
        if not node.waiting and not self.branches[node.id]:
            return []
        coming = {step for places in self._in_flight.values() for name, step in places if name == node.id}
        coverage = Coverage(node, self._progress, coming)
        coming.update(node.saving)
        urgencies = self._needed_steps(node, lambda step: not coverage.covers(step) and step not in coming)
        cost, needs = self._costs.seconds_per_step(node) if urgencies else 0.0, list[Need]()
        for step in sorted(urgencies):
            resume_step = coverage.latest(step)
            takes = (step - resume_step) * cost
            onward = {study: (priority, takes + seconds) for study, (priority, seconds) in urgencies[step].items()}
            needs.append(Need(step, resume_step, onward))
        return needs

    def unkept(self, node: Node) -> list[int]:
        """The steps at which somebody needs the node's state or a result, and no state is kept, in order."""
        waiting = (step for step, keys in node.waiting.items() if any(self._runs(study) for study, _ in keys))
        return sorted({*waiting, *self.branches[node.id]} - node.checkpoints.keys())

    def _runs(self, study: StudyId) -> bool:
        return self._plan.studies[study].is_running

    def _needed_steps(self, node: Node, counts: Callable[[int], bool]) -> dict[int, Urgencies]:
        """Those steps that someone waits for or that children begin at, each with the urgency of what follows there."""
        by_step: dict[int, Urgencies] = defaultdict(dict)
        for step in filter(counts, node.waiting):
            for key in node.waiting[step]:
                if self._runs(key[0]):
                    raise_to(by_step[step], {key[0]: (self._plan.trial(key).priority, 0.0)})
        for step, branch in self.branches[node.id].items():
            if step not in node.resumable and counts(step):
                raise_to(by_step[step], branch.tops())
        return {step: urgencies for step, urgencies in by_step.items() if urgencies}
