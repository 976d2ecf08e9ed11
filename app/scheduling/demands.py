"""The demand at every place of a plan: the work that begins there, for each study, and its urgency.

A *need* is a step that must be reached in a node: a request, or the start of a child with needs of its own. Each need
resumes at the latest checkpoint before it, or at the node's start: its *resume step*. The *demand* at a resume step is
the urgency of each study's most urgent path that begins there: by the highest priority of a trial, then by the longest
time (TreeML §4.3, critical path). A resume step with demand and an available state is a *head*.
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
"""(priority, seconds of the longest path with that priority), for trials in a study or for studies."""

Urgencies = dict[StudyId, Urgency]
"""The urgency of a piece of work for each study that needs it."""

Key = TypeVar("Key", bound=Any)


class Ranking(Generic[Key]):
    """A priority queue of keys by urgency; ties go to the smaller key."""

    __slots__ = ("_heap", "_urgency")

    def __init__(self) -> None:
        self._urgency = TrackedDict[Key, Urgency]()
        self._heap: list[tuple[float, float, Key]] = []  # outdated entries are skipped

    def set_urgency(self, key: Key, urgency: Urgency | None) -> None:
        """Set the urgency of a key; None removes the key."""
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
    """Raise each study's urgency to at least that in `others`."""
    for study, urgency in others.items():
        urgencies[study] = max(urgencies.get(study, urgency), urgency)


class ChildQueue:
    """The children of a node that start at one step, ordered by the urgency of their demands."""

    def __init__(self) -> None:
        self._by_study: dict[StudyId, Ranking[NodeId]] = {}
        self._studies_of: dict[NodeId, frozenset[StudyId]] = {}

    def set_urgency(self, child: NodeId, demand: Mapping[StudyId, Urgency]) -> bool:
        """Set the demand of a child. Returns whether the most urgent child of any study has changed."""
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
        """The urgency of each study's most urgent child."""
        return {study: top[0] for study, ranking in self._by_study.items() if (top := ranking.top())}

    def children(self, study: StudyId | None = None) -> Iterator[NodeId]:
        """The children with demand of a study, or of any."""
        return iter(self._studies_of if study is None else self._by_study.get(study, ()))

    def __bool__(self) -> bool:
        return bool(self._studies_of)


@dataclass(frozen=True, slots=True)
class Need:
    """Reach `step`, resuming at `resume_step`. urgencies: of the paths from there on through `step`."""

    step: int
    resume_step: int
    urgencies: Urgencies


class Coverage:
    """An index of the steps of a node with a saved or expected state, and of the steps that running stages will pass.

    It answers queries without a loop over all stages, which matters in a node with thousands of requests and stages.
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
        self._ahead = _join_spans(ahead)

    def covers(self, step: int) -> bool:
        """See `Node.covers`."""
        if step in self._certain:
            return True
        number = bisect_left(self._ahead, (step,)) - 1
        return number >= 0 and step < self._ahead[number][1]

    def latest(self, step: int) -> int:
        """See `stage_tree.latest_state`; the node's start if there is none."""
        number = bisect_right(self._states, step)
        return self._states[number - 1] if number else self._start


def _join_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping spans, in order. Spans that only touch stay apart, as their common end is inside neither."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


NOTHING = NodeId("")
"""The parent of roots. Its state at step 0 is always available."""

State = tuple[int, NodeId]
"""The state of a node at a step."""

InFlight = dict[ChainId, frozenset[Place]]
"""The states that each chain is still uploading, according to its row."""


class Demands:
    """The demands of a plan, as of the last update of each of its nodes.

    branches: the children with demand of each node, by the step at which they start. ready: by study, the available
    states that its work begins with. wanted_from: the inverse, the studies by state.
    """

    def __init__(self, plan: SearchPlan, costs: Costs, progress: Progresses, in_flight: InFlight) -> None:
        self.branches: dict[NodeId, dict[int, ChildQueue]] = defaultdict(dict)
        self.ready: dict[StudyId, Ranking[State]] = {}
        self.wanted_from: dict[State, frozenset[StudyId]] = {}
        self._plan, self._costs, self._progress, self._in_flight = plan, costs, progress, in_flight
        self._demand: dict[NodeId, dict[int, Urgencies]] = {}  # by resume step
        self._kept: dict[NodeId, frozenset[int]] = {}  # the steps of each node with available states

    def demand_at(self, place: Place) -> Urgencies:
        """The demand at a resume step; empty where there is none."""
        return self._demand.get(place[0], {}).get(place[1], {})

    def update(self, node: Node) -> set[NodeId]:
        """Update a node. Returns the nodes to update as a consequence: its origins, and averages of its states."""
        before, demand = self._demand.get(node.id, {}), dict[int, Urgencies]()
        for need in self.needs(node):
            raise_to(demand.setdefault(need.resume_step, {}), need.urgencies)
        available_steps, averages = node.available_steps, self._plan.averages.get(node.id, {})
        changed = set(self._kept.get(node.id, frozenset()) ^ available_steps)
        also = {name for names in averages.values() for name in names}
        changed.update(step for step in before.keys() | demand.keys() if before.get(step) != demand.get(step))
        self._demand[node.id], self._kept[node.id] = demand, available_steps
        for step in changed:
            self._update_state(node.id, step)
        if node.id in self._plan.means:
            also |= self._update_origins(node, demand.get(node.start, {}))
        elif (first := demand.get(node.start, {})) != before.get(node.start, {}):
            also |= self._set_demand((node.parent or NOTHING, node.start), node, first)
        return also

    def revise(self, node: Node) -> set[NodeId]:
        """Revise the cost estimate of a node. Returns the nodes to update as a consequence."""
        return self.update(node) if self._demand.get(node.id) and self._costs.revise(node) else set()

    def _update_origins(self, average: Node, demand: Urgencies) -> set[NodeId]:
        """Pass the demand of an average to its missing states or, if all are available, to the average itself."""
        plan, here = self._plan, (NOTHING, average.start)
        places = [here] if plan.can_begin(average, average.start) else plan.missing_states(average)
        changed = dict.fromkeys((*plan.origins(average), here), Urgencies()) | dict.fromkeys(places, demand)
        return {name for place, each in changed.items() for name in self._set_demand(place, average, each)}

    def _set_demand(self, place: Place, node: Node, demand: Urgencies) -> set[NodeId]:
        """Set the demand of a node where it begins. Returns the node of that place if its state there is missing."""
        (name, step), branches = place, self.branches[place[0]]
        is_changed = branches.setdefault(step, ChildQueue()).set_urgency(node.id, demand)
        if not branches[step]:
            del branches[step]
        if is_changed and self._is_available(name, step):
            self._update_state(name, step)
        return {name} if is_changed and not self._is_available(name, step) else set()

    def _update_state(self, name: NodeId, step: int) -> None:
        """Update the work that can begin with a state."""
        state, urgencies = (step, name), Urgencies()
        if self._is_available(name, step):
            raise_to(urgencies, self._own_demand(name, step))
            if branch := self.branches[name].get(step):
                raise_to(urgencies, branch.tops())
        for study in self.wanted_from.pop(state, frozenset()) | urgencies.keys():
            ready = self.ready.setdefault(study, Ranking())
            ready.set_urgency(state, urgencies.get(study))
            if not ready:
                del self.ready[study]
        if urgencies:
            self.wanted_from[state] = frozenset(urgencies)

    def _own_demand(self, name: NodeId, step: int) -> Urgencies:
        """The demand in the node itself from its state at a step."""
        if not name or step <= self._plan.nodes[name].start:
            return {}
        return self.demand_at((name, step))

    def most_urgent_place(self, study: StudyId, state: State) -> Place | None:
        """The most urgent place of a study that begins with this state: in the node itself, or in a child."""
        step, name = state
        own, branch = self._own_demand(name, step).get(study), self.branches[name].get(step)
        top = branch.top(study) if branch else None
        if top is None or (own is not None and own >= top[0]):
            return None if own is None else (name, step)
        return (top[1], step)

    def _is_available(self, name: NodeId, step: int) -> bool:
        return name == NOTHING or self._plan.nodes[name].is_available(step)

    def needs(self, node: Node) -> list[Need]:
        """The needs in the node that no running stage serves, in order of steps."""
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

    def unkept_steps(self, node: Node) -> list[int]:
        """The steps where a trial or a child needs the node's state or result, and no state is saved, in order."""
        waiting = (step for step, keys in node.waiting.items() if any(self._runs(study) for study, _ in keys))
        return sorted({*waiting, *self.branches[node.id]} - node.checkpoints.keys())

    def _runs(self, study: StudyId) -> bool:
        return self._plan.studies[study].is_running

    def _needed_steps(self, node: Node, counts: Callable[[int], bool]) -> dict[int, Urgencies]:
        """The steps that trials wait for or children begin at, each with the urgency of the work that follows."""
        by_step: dict[int, Urgencies] = defaultdict(dict)
        for step in filter(counts, node.waiting):
            for key in node.waiting[step]:
                if self._runs(key[0]):
                    raise_to(by_step[step], {key[0]: (self._plan.trial(key).priority, 0.0)})
        for step, branch in self.branches[node.id].items():
            if step not in node.resumable and counts(step):
                raise_to(by_step[step], branch.tops())
        return {step: urgencies for step, urgencies in by_step.items() if urgencies}
