"""The plan as a whole: its nodes, studies, running chains and checkpoints, and queries over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain.events import MeanShare
from app.domain.search_plan.chain import ChainsUnderWay
from app.domain.search_plan.node import MAX_LOST, Checkpoint, ErrorLocation, FinalFailure, Node, PlacedCheckpoint
from app.domain.search_plan.resumptions import Resumption, Value, Witness, resumption_at
from app.domain.search_plan.study import Study, require_open
from app.domain.search_plan.trial import Trial
from app.domain.terms import NodeId, Place, StudyId, TrialKey, Unknown, VerificationKind
from stagetree.text import means


@dataclass(slots=True)
class SearchPlan:
    """All trials of all studies on one trainer, version, arguments and seed."""

    opened: e.PlanOpened | None = None
    version: int = 0
    """Position in the event stream of the last folded event."""

    nodes: dict[NodeId, Node] = field(default_factory=dict)
    roots: list[NodeId] = field(default_factory=list)
    means: dict[NodeId, tuple[MeanShare, ...]] = field(default_factory=dict)
    """The averaged states of each average. These nodes have several origins and no parent."""
    averages: dict[NodeId, dict[int, list[NodeId]]] = field(default_factory=dict)
    """The inverse of `means`: the averages that each state is part of, by node and step."""
    measured: list[NodeId] = field(default_factory=list)
    """The nodes with trained steps, in the order of their first one."""
    progress_version: int = 0
    """Counts the changes of trained steps, checkpoints and metrics, on which the prices of trials depend."""
    touched: set[NodeId] = field(default_factory=set)
    """Nodes whose outstanding work may have changed. The frontier empties it."""

    studies: dict[StudyId, Study] = field(default_factory=dict)
    struck: frozenset[StudyId] = frozenset()
    """Studies whose events are not folded."""
    detached: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes that only struck studies pass. They are not part of the tree."""
    metric_unseen: dict[StudyId, None] = field(default_factory=dict)
    """Studies whose metric has not been reported by any evaluation yet."""
    awaiting_target: dict[StudyId, None] = field(default_factory=dict)
    """Open studies whose target evaluations may still reach."""

    chains: ChainsUnderWay = field(default_factory=ChainsUnderWay)
    stages_run: int = 0
    slots: set[str] = field(default_factory=set)
    """The slots that have led chains."""
    gpus: set[str] = field(default_factory=set)
    """The kinds of GPU that have been given stages."""
    environments: dict[str, e.EnvironmentSeen] = field(default_factory=dict)
    """Software versions by kind of device."""
    shared: set[NodeId] = field(default_factory=set)
    """Nodes with stages that ran in a process in which another chain had trained before."""
    final_failures: dict[ErrorLocation, FinalFailure] = field(default_factory=dict)
    """Errors that ended a trial after all its tries."""

    kept_bytes: int = 0
    """The size of all checkpoints."""
    intermediate_bytes: int = 0
    """The size of those inside stages."""
    released: dict[str, PlacedCheckpoint] = field(default_factory=dict)
    """Released checkpoints whose objects are still to be deleted, by key."""
    weights: dict[str, Checkpoint] = field(default_factory=dict)
    """The weights that studies begin with, by key."""

    packing: int | None = 0
    """Lanes of a pack. 0: each stage is trained alone. None: not chosen yet."""
    packing_reason: str = ""
    profiles: dict[str, e.PackingProfiled] = field(default_factory=dict)
    """Measurements of packs, by kind of device."""
    measurements: int = 0
    """Chains that were assigned to choose `packing`."""
    ranks_profiles: dict[str, e.RanksProfiled] = field(default_factory=dict)
    """Seconds a step on several devices, by their kind."""
    needs: dict[str, list[e.NeedsMore]] = field(default_factory=dict)
    """How many devices of a kind had too little memory."""

    tests: list[e.ExactnessTested] = field(default_factory=list)
    resumptions: dict[Resumption, None] = field(default_factory=dict)
    """Where training has resumed from a saved state."""
    compared: dict[int, frozenset[Value]] = field(default_factory=dict)
    """By the step of a resumption, the kinds of values with which it was equal to uninterrupted training."""
    witnesses: dict[int, list[Witness]] = field(default_factory=dict)
    """By the step of a resumption, the cheapest comparisons that would verify it."""
    audits: list[Witness] = field(default_factory=list)
    """Stages that began with a saved state and may be sampled for an audit."""
    failed_verifications: dict[VerificationKind, int] = field(default_factory=dict)
    """How many verification chains of each kind ended without a result."""
    check_failures: dict[NodeId, Mapping[str, Any]] = field(default_factory=dict)
    """The error of the trainer's check, by the root whose values it used."""
    unreported: dict[StudyId, Mapping[str, Any]] = field(default_factory=dict)
    """The error of the trainer's check of studies whose metric it did not report."""

    @property
    def is_compared(self) -> bool:
        """Whether steps are trained again for comparison, which packs do not allow."""
        return self.packing == 0

    def node(self, name: NodeId) -> Node:
        """The node of that id, also if only struck studies pass it. Raises `KeyError`."""
        if name in self.nodes or not self.struck:
            return self.nodes[name]
        return self.detached.setdefault(name, Node(name, None, 0, {}))

    def gpu_at(self, node: Node, step: int) -> str:
        """The kind of GPU that trained the state at which a chain begins; "" for none, or an unknown one."""
        at: Node | None = node
        if step == node.start:
            at = self.nodes.get(node.parent) if node.parent else None
        while at is not None and not at.gpu:
            at = self.nodes.get(at.parent) if at.parent else None
        return "" if at is None else at.gpu

    def speedup_of(self, kind: str, ranks: int) -> float:
        """The measured speed-up of several devices over one; their number before any measurement."""
        profile = self.ranks_profiles.get(kind)
        seconds = {} if profile is None or ranks == 1 else profile.step_seconds
        return speedup(seconds, ranks) if str(ranks) in seconds else float(ranks)

    def ranks_needed(self, kind: str, batch: Mapping[str, Any]) -> int:
        """The fewest devices of a kind with enough memory for a batch, judging by recorded failures of smaller ones."""
        return max((2 * need.ranks for need in self.needs.get(kind, ()) if _holds(batch, need.batch)), default=1)

    def shares_processes(self, study: Study) -> bool:
        """Whether any stage of the study ran in a process in which another chain had trained before."""
        return any(not self.shared.isdisjoint(trial.path) for trial in study.trials if self.shared)

    def trial(self, key: TrialKey) -> Trial:
        return self.studies[key[0]].trials[key[1]]

    def resumption(self, node: NodeId, end: int, step: int) -> Resumption:
        """The resumption after `step` steps on the path to step `end` of a node."""
        return resumption_at(self.path_to(node, end), step)

    def is_compared_at(self, resumption: Resumption) -> bool:
        """Whether a comparison has shown that this resumption gives the same result as uninterrupted training."""
        values = self.compared.get(resumption.step)
        return values is not None and resumption.values <= values

    @property
    def first_difference(self) -> e.ExactnessTested | None:
        """The first comparison with a difference, which proves that the trainer is not exact; None if there is none."""
        return next((test for test in self.tests if test.difference), None)

    @property
    def uncompared_resumptions(self) -> list[Resumption]:
        """The resumptions that are not compared yet, by step."""
        return sorted((each for each in self.resumptions if not self.is_compared_at(each)), key=lambda each: each.step)

    def origins(self, node: Node) -> list[Place]:
        """The states that a node begins with: its parent's, all states of its mean, or none at step 0."""
        if (shares := self.means.get(node.id)) is not None:
            return [(share.node, share.step) for share in shares]
        return [] if node.parent is None else [(node.parent, node.start)]

    def missing_states(self, node: Node) -> list[Place]:
        """The origins of a node whose states are not available."""
        return [(name, step) for name, step in self.origins(node) if not self.node(name).is_available(step)]

    def can_begin(self, node: Node, step: int) -> bool:
        """Whether a chain may train the node from this step on.

        It needs the node's own state there or its origins'. An average needs its states in the store.
        """
        if node.is_available(step) or step != node.start:
            return node.is_available(step)
        if node.id in self.means:
            return all(at in self.node(name).resumable for name, at in self.origins(node))
        return not self.missing_states(node)

    def start_node(self, node: Node, step: int) -> Node | None:
        """The node with the state from which a chain trains `node` from this step on; None at step 0."""
        if node.is_available(step):
            return node
        return None if node.parent is None else self.nodes[node.parent]

    def required_host(self, node: Node, step: int) -> str:
        """The only host whose slots can train the node from this step on; "" for any host."""
        begins = self.start_node(node, step)
        cached = begins.cached.get(step) if begins is not None else None
        return "" if cached is None else cached.host

    def is_without_pack(self, stage: e.Stage) -> bool:
        """Whether part of a stage was trained alone after its pack had failed."""
        noted = self.nodes[stage.node].not_exact if stage.node in self.nodes else ()
        return any(reason == e.WITHOUT_PACK and stage.start < step <= stage.end for step, reason in noted)

    def is_suspect(self, node: NodeId, start: int) -> bool:
        """Whether the process of a stage that begins there died too often, so that it must be trained alone."""
        return node in self.nodes and self.nodes[node].lost.get(start, 0) >= MAX_LOST

    def waiting_studies(self, node: Node, step: int) -> Iterator[Study]:
        """The running studies of the trials that wait for a result at this step."""
        for study, _ in node.waiting.get(step, ()):
            if self.studies[study].is_running:
                yield self.studies[study]

    def node_of(self, trial: Trial, step: int) -> Node:
        """The node in which the trial's first run takes step number `step`."""
        return self._node_in(trial.path, step)

    def nodes_of(self, trial: Trial, step: int) -> list[Node]:
        """The unique nodes in which the trial's runs take that step."""
        if len(trial.runs) == 1:
            return [self.node_of(trial, step)]
        nodes = (self._node_in(run.path, step) for run in trial.runs)
        return list({node.id: node for node in nodes}.values())

    def _node_in(self, path: list[NodeId], step: int) -> Node:
        if (last := self.nodes[path[-1]]).start < step:  # as for nearly all
            return last
        starts = [self.nodes[node].start for node in path]
        return self.nodes[path[max(0, bisect_right(starts, step - 1) - 1)]]

    def start_step(self, trial: Trial) -> int:
        """The step at which the trial begins: 0, or the step of the average that it begins with."""
        return self.nodes[trial.path[0]].start

    def path_ends(self, trial: Trial) -> Iterator[tuple[NodeId, int]]:
        """The nodes on the paths of the trial's runs, one path after the other, each with the last step taken there."""
        for run in trial.runs:
            ends = [*(self.nodes[name].start for name in run.path[1:]), trial.steps]
            yield from zip(run.path, ends, strict=True)

    def metrics_by_run(self, trial: Trial, step: int) -> list[Mapping[str, float | None]]:
        """The metrics after `step` steps of the trial's runs, once for runs that share the step."""
        return [each for node in self.nodes_of(trial, step) if (each := node.metrics.get(step)) is not None]

    def sources(self, trial: Trial) -> Iterator[tuple[NodeId, int]]:
        """Like `path_ends`, after the paths to the states that the trial is an average of."""
        places, ends = self.origins(self.nodes[trial.path[0]]), list[tuple[NodeId, int]]()
        while places:
            path = self.path_to(*places.pop())
            ends += [(node.id, end) for node, end in path]
            places += self.origins(path[0][0])
        return iter(dict.fromkeys((*ends[::-1], *self.path_ends(trial))))

    def metrics(self, trial: Trial, step: int) -> Mapping[str, float | None] | None:
        """The mean metrics of the trial's runs after `step` steps; None until all are evaluated there."""
        if len(trial.runs) == 1:
            return self.node_of(trial, step).metrics.get(step)
        measured = self.metrics_by_run(trial, step)
        return means(measured) if measured and len(measured) == len(self.nodes_of(trial, step)) else None

    def curve(self, trial: Trial) -> Iterator[tuple[int, Mapping[str, float | None]]]:
        """The evaluations on the trial's path up to its last requested step, in order of steps."""
        for name, end in self.path_ends(next(trial.single_runs())):
            here = self.nodes[name].metrics
            for step in sorted(step for step in here if step <= end):
                metrics = here[step] if len(trial.runs) == 1 else self.metrics(trial, step)
                if metrics is not None:
                    yield step, metrics

    def ancestry(self, name: NodeId) -> list[Node]:
        """The node and its ancestors, root first."""
        path = [self.nodes[name]]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return path[::-1]

    def path_to(self, name: NodeId, end: int) -> list[tuple[Node, int]]:
        """The ancestry of a node, each with the step at which the path to step `end` of the node leaves it.

        An ancestor's later steps belong to other trials.
        """
        path = self.ancestry(name)
        return list(zip(path, [*(each.start for each in path[1:]), end], strict=True))

    def trials_waiting_after(self, node: Node, step: int) -> Iterator[tuple[TrialKey, int]]:
        """The trials that wait for training of `node` past `step`, each with the step that it waits for."""
        for below in self.nodes_after(node, step):
            for at, keys in below.waiting.items():
                if at > step:
                    yield from ((key, at) for key in sorted(keys))

    def nodes_after(self, node: Node, step: int) -> Iterator[Node]:
        """The node and its descendants that begin after `step`, each before its children.

        Averages of missing states count as children.
        """
        branches = [iter([node])]
        while branches:
            child = next(branches[-1], None)
            if child is None:
                branches.pop()
            else:
                yield child
                branches.append(self._children_after(child, step))

    def _children_after(self, node: Node, step: int) -> Iterator[Node]:
        yield from (self.nodes[name] for name in node.children if self.nodes[name].start > step)
        for at, names in self.averages.get(node.id, {}).items():
            if at > step and at not in node.resumable:
                averages = (self.nodes[name] for name in names if name in self.nodes)
                yield from (average for average in averages if average.start not in average.resumable)


def speedup(step_seconds: Mapping[str, float], ranks: int) -> float:
    """The measured speed-up of `ranks` devices over one. The smallest measured number counts as perfectly scaled."""
    fewest = min(map(int, step_seconds))
    return fewest * step_seconds[str(fewest)] / step_seconds[str(ranks)]


def _holds(batch: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a batch is at least as large as another one, by the hyper-parameters that decide it."""
    if batch.keys() != other.keys():
        return False
    return all(value == other[name] or _is_larger(value, other[name]) for name, value in batch.items())


def _is_larger(one: object, other: object) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float) and one > other


def get_study(plan: SearchPlan, study: StudyId) -> Study:
    if study not in plan.studies or plan.studies[study].deleted:
        raise Unknown(f"there is no study {study}")
    return plan.studies[study]


def get_open_study(plan: SearchPlan, study: StudyId) -> Study:
    return require_open(get_study(plan, study))
