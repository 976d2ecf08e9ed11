"""The outstanding work of one plan, updated incrementally: where a slot may begin, and which path is longest.

`app.domain.stage_tree` defines the stage tree. Rebuilding it for each decision would cost more with every trial. The
frontier updates only the nodes that an event touched, and their ancestors as far as their demand changes.

A *head* is a place with demand (see `app.scheduling.demands`) whose state is available.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from app.domain.outstanding_requests import evaluations_by_part
from app.domain.search_plan import Chain, ChainProgress, SearchPlan
from app.domain.stage_tree import Place, UpcomingBranches
from app.domain.terms import ChainId, NodeId, PlanId, StudyId
from app.scheduling.costs import Costs
from app.scheduling.demands import Demands, InFlight, Need, Urgency

UNNAMED = PlanId("")

MOST_ESTIMATES = 20
"""Most nodes that one tick updates because of a new cost estimate. The others follow in later ticks."""

FRESH_SHARE = 0.02
"""The largest share of a chain's time that the start of a fresh process may take, if `fresh_processes` is auto."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a node between two needs: a stage that is not charged to a study yet.

    study: the one that it was chosen for.
    """

    node: NodeId
    start: int
    end: int
    study: StudyId | None = None


class Frontier:
    """Heads and demands of the plan `id`; call `refresh` after events were folded into it."""

    def __init__(self, plan: SearchPlan, costs: Costs | None = None, *, id: PlanId = UNNAMED) -> None:
        self.plan, self.id = plan, id
        self.progress: dict[ChainId, ChainProgress] = {}
        self._costs = costs or Costs()
        self.in_flight: InFlight = {}
        self.unread_chains = set(plan.chains)  # chains whose row, or its meaning for the plan, may have changed
        self.demands = Demands(plan, self._costs, self.progress, self.in_flight)
        self.upcoming = UpcomingBranches(plan)
        self._nodes: list[NodeId] = []  # of the plan, each before its children
        self._outdated = 0  # how many of these, from the front, may have new estimates
        self._estimates = MOST_ESTIMATES  # left in this tick
        self._pending = set(plan.nodes)  # nodes to update; each is removed only after its update
        self.affected: set[ChainId] = set()  # chains with changes; the code that notifies them empties it
        self.late_branches: dict[ChainId, set[int]] = {}  # branch steps that were unknown when a chain began

    @property
    def is_behind(self) -> bool:
        """Whether events were folded into the plan since the last `refresh`."""
        return bool(self.plan.touched or self._pending or self.upcoming.is_behind)

    def take_unread_chains(self) -> set[ChainId]:
        """The chains whose rows must be read now. Chains with checkpoints in flight are always read."""
        unread_chains, self.unread_chains = self.unread_chains | self.in_flight.keys(), set()
        return unread_chains

    def set_progress(self, chain: ChainId, progress: ChainProgress) -> None:
        """Record a worker's progress. Needs that it has passed unserved are outstanding after the next `refresh`.

        Progress is not an event: it is outdated when written, and the resulting assignment is recorded anyway.
        """
        record = self.plan.chains.get(chain)
        if record is None or record.is_trained or self.progress.get(chain) == progress:
            return
        before, node = self.progress.get(chain), self.plan.node(record.stages[record.index].node)
        self.progress[chain] = progress
        since = before.step if before and before.saving == progress.saving else node.start
        if any(since < step <= progress.step for step in (*node.waiting, *self.demands.branches[node.id])):
            self._pending.add(node.id)

    def progress_in(self, names: Iterable[NodeId]) -> dict[ChainId, ChainProgress]:
        """The progress of the chains that train these nodes."""
        running = (chain for name in names for chain, _ in self.plan.nodes[name].running)
        return {chain: self.progress[chain] for chain in running if chain in self.progress}

    def set_in_flight(self, chain: ChainId, places: frozenset[Place]) -> None:
        """Set the states that a chain must still save of its completed stages."""
        before = self.in_flight.pop(chain, frozenset())
        if places:
            self.in_flight[chain] = places
        self._pending.update(node for node, _ in places ^ before)

    def begin_tick(self) -> None:
        """Start a tick: reset its limits for work that can be deferred."""
        self._estimates = MOST_ESTIMATES
        self.upcoming.begin_tick()

    def refresh(self) -> None:
        """Apply the changes of the plan since the last call. Deferred work follows in later calls."""
        self._forget_chains()
        new = islice(reversed(self.plan.nodes), len(self.plan.nodes) - len(self._nodes))
        self._nodes += reversed(list(new))
        if self._costs.refit(self.plan):
            self._outdated = len(self._nodes)
        self._revise_estimates()
        self._take_in_events()
        for name, steps in self.upcoming.read_new_events().items():
            self._add_late_branches(name, steps)

    def _forget_chains(self) -> None:
        """Drop the uploads of ended chains, which will not arrive, and the other data of ended chains.

        The latter does no harm, so it is dropped only when it exceeds the data of running chains.
        """
        chains = self.plan.chains
        by_chain: tuple[dict[ChainId, Any], ...] = (self.progress, self.late_branches)
        for of_chains in [each for each in by_chain if len(each) > 2 * len(chains)]:
            for chain in of_chains.keys() - chains.keys():
                del of_chains[chain]
        for chain in [each for each in self.in_flight if each not in chains]:
            self.set_in_flight(chain, frozenset())

    def _revise_estimates(self) -> None:
        """Revise estimates of some nodes, children first, so that few nodes are updated twice."""
        now = min(self._outdated, self._estimates)
        self._estimates -= now
        for _ in range(now):
            self._outdated -= 1
            self._pending |= self.demands.revise(self.plan.nodes[self._nodes[self._outdated]])

    def _take_in_events(self) -> None:
        touched = self._pending | self.plan.touched
        self._pending = {name for name in touched if name in self.plan.nodes}  # others belong to struck studies
        self.plan.touched.clear()
        queue = [(-self.plan.nodes[name].start, name) for name in self._pending]
        heapq.heapify(queue)  # children begin after their parents, so each node is updated once
        while queue:
            name = heapq.heappop(queue)[1]
            node = self.plan.nodes[name]
            others = self.demands.update(node)
            for chain, _ in node.running:
                self.affected.add(chain)
                self.unread_chains.add(chain)
            self._pending.discard(name)
            for other in (others & self.plan.nodes.keys()) - self._pending:
                self._pending.add(other)
                heapq.heappush(queue, (-self.plan.nodes[other].start, other))

    def _add_late_branches(self, name: NodeId, steps: set[int]) -> None:
        """Record new branch steps for the chains that will pass them, which must save the states there."""
        node = self.plan.nodes.get(name)
        for (chain, _), (start, end) in node.running.items() if node else ():
            if late := steps.intersection(self.upcoming.branch_steps(name, start, end)):
                self.late_branches.setdefault(chain, set()).update(late)
                self.affected.add(chain)

    # ------------------------------------------------------------------------------------------- outstanding work

    def heads(self, study: StudyId | None = None) -> Iterator[Place]:
        """The heads of a study, or of all, in no particular order."""
        states = self.demands.wanted_from if study is None else self.demands.ready.get(study, ())
        for step, name in states:
            demand = self.demands.demand_at((name, step))
            if name and (demand if study is None else study in demand):
                yield (name, step)
            if branch := self.demands.branches[name].get(step):
                yield from ((child, step) for child in branch.children(study))

    def studies(self) -> Iterator[StudyId]:
        """The studies with heads."""
        return (study for study, ready in self.demands.ready.items() if ready)

    def urgency(self, head: Place) -> Urgency:
        """(priority, seconds) of the most important study's most urgent path from a head."""
        return max(self._rank_urgency(study, urgency) for study, urgency in self.demands.demand_at(head).items())

    def most_urgent_head(self, passed_over: Container[Place] = (), study: StudyId | None = None) -> Place | None:
        """The head with the most urgent path of a study, or of the most important study; `passed_over` are ignored."""
        if study is not None:
            return self._most_urgent_of(study, passed_over)
        best: tuple[Urgency, Place] | None = None
        for each in self.demands.ready:
            head = self._most_urgent_of(each, passed_over)
            if head is not None:
                urgency = self._rank_urgency(each, self.demands.demand_at(head)[each])
                if best is None or urgency > best[0]:
                    best = urgency, head
        return best and best[1]

    def path(self, head: Place, study: StudyId | None = None) -> list[Span]:
        """A study's most urgent path from a head to the end, cut at every need along it.

        Among equally urgent paths, the one that stays in the node longest: stages that branch off can begin earlier.
        """
        if study is None:
            demand = self.demands.demand_at(head)
            study = max(demand, key=lambda each: (self._rank_urgency(each, demand[each]), each))
        spans: list[Span] = []
        place: Place | None = head
        while place is not None:
            name, start = place
            needs = [need for need in self.demands.needs(self.plan.nodes[name]) if need.resume_step == start]
            own = [need for need in needs if study in need.urgencies]
            target = max(own, key=lambda need: (need.urgencies[study], need.step)).step
            for need in needs:
                if need.step <= target:
                    spans.append(Span(name, start, need.step, study))
                    start = need.step
            branch = self.demands.branches[name].get(target)
            onward = branch and branch.top(study)
            place = (onward[1], target) if onward and onward[1] not in self.plan.means else None
        return spans

    def children(self, spans: Sequence[Span]) -> list[int]:
        """The number of stages that can begin at the end of each span. The needs of each node are computed once."""
        needs = {name: self.demands.needs(self.plan.nodes[name]) for name in {span.node for span in spans}}
        return [self._children(span, needs[span.node]) for span in spans]

    def _children(self, span: Span, needs: Sequence[Need]) -> int:
        """needs: of the span's node, in order of steps."""
        following = bisect_right(needs, span.end, key=attrgetter("step"))
        continues = following < len(needs) and needs[following].resume_step <= span.end
        branch = self.demands.branches[span.node].get(span.end)
        return (sum(1 for _ in branch.children()) if branch else 0) + continues

    def seconds(self, span: Span, gpu: str | None = None) -> float:
        """The estimated seconds to train a span on one slot. gpu: the slot's kind, if known."""
        return (span.end - span.start) * self._costs.seconds_per_step(self.plan.nodes[span.node], gpu)

    def most_fresh_seconds(self, spans: Sequence[Span]) -> float | None:
        """See `ChainAssignment.most_fresh_seconds`."""
        studies = [study for study in self.plan.studies.values() if not study.is_final]
        if not self._costs.is_fitted or any(study.spec.fresh_processes == "always" for study in studies):
            return None
        return FRESH_SHARE * sum(map(self.seconds, spans))

    def seconds_left(self, chain: Chain) -> float:
        """The estimated seconds to the end of a chain's current stage, on its slots."""
        stage = chain.stages[chain.index]
        step = max(stage.start, self.progress[chain.id].step) if chain.id in self.progress else stage.start
        if stage.node not in self.plan.nodes:
            return 0.0
        return max(0, stage.end - step) * self._seconds_a_step(chain, stage.node)

    def seconds_to_end(self, chain: Chain) -> float:
        """The estimated seconds to the end of all stages of a chain."""
        if chain.is_trained:
            return 0.0
        ahead = [stage for stage in chain.stages[chain.index + 1 :] if stage.node in self.plan.nodes]
        later = sum((stage.end - stage.start) * self._seconds_a_step(chain, stage.node) for stage in ahead)
        return self.seconds_left(chain) + later

    def _seconds_a_step(self, chain: Chain, node: NodeId) -> float:
        return self._costs.seconds_in_gang(self.plan, self.plan.nodes[node], chain.kind, chain.ranks)

    def extra_eval_steps(self, chain: Chain) -> list[int]:
        """The steps inside a chain's remaining stages with needs that its assignment does not contain.

        The chain should evaluate and save its state there. Saving is superfluous if a later study only requests an
        evaluation; that is the price of one list for both.
        """
        extra: set[int] = set()
        ahead = chain.stages[chain.index :]
        needed = {name: self.demands.unkept_steps(self.plan.nodes[name]) for name in {stage.node for stage in ahead}}
        passed = self.progress[chain.id].step if chain.id in self.progress else 0
        for stage, evaluate in zip(ahead, evaluations_by_part(self.plan, ahead), strict=True):
            steps, start = needed[stage.node], max(stage.start, passed)
            extra.update(steps[bisect_right(steps, start) : bisect_left(steps, stage.end)])
            late = (step for step in evaluate if passed < step or passed == step == stage.end)
            extra.update(step for step in late if step not in stage.evaluate)
        return sorted(extra)

    def _rank_urgency(self, study: StudyId, urgency: Urgency) -> Urgency:
        """The urgency of a study's path for comparison with other studies: the study's priority and the time."""
        return (self.plan.studies[study].spec.priority, urgency[1])

    def _most_urgent_of(self, study: StudyId, passed_over: Container[Place]) -> Place | None:
        ready = self.demands.ready.get(study)
        top = ready.top() if ready else None
        first = top and self.demands.most_urgent_place(study, top[1])
        if first is None or first not in passed_over:
            return first
        others = [head for head in self.heads(study) if head not in passed_over]
        return max(others, key=lambda head: (self.demands.demand_at(head)[study], -head[1], head[0]), default=None)
