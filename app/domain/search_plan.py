"""The search plan: an append-only tree of all that its studies ever asked for.

TreeML §4.2 describes the structure: nodes with hyper-parameter functions, checkpoints, metrics and requests, and edges
that are only ever added. `app.domain.evolve` makes it from events, and nothing else does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain.ids import ChainId, NodeId, StudyId, TrialKey
from app.domain.schedule import Segment, segment_at
from app.domain.states import FINAL_STATES, StudyState, TrialEventKind, TrialState

MAX_RESTARTS = 2
"""Of a study that does not say."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a state is kept. `intermediate`: inside a stage, because it was cheap, not because anyone asked."""

    key: str
    sha256: str
    size: int
    intermediate: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a chain's worker is in its stage, by its last heartbeat: an observation, not a fact of the log.

    saving: steps that it passed and evaluates or keeps, of which the log does not know yet.
    """

    step: int
    saving: frozenset[int] = frozenset()


Progresses = Mapping[ChainId, Progress]
NO_PROGRESS: Progresses = {}


@dataclass(slots=True)
class Node:
    """One set of sequences from step `start` on, under a parent; it has no end of its own.

    hp: of the first trial that came here; from `start` on, all who do have the same.
    waiting: at each step, the trials that asked for a result there and have none yet, or are to be evaluated there.
    running: for each stage of a chain under way, the steps (start, end] it trains here.
    saving: steps that were trained and whose checkpoint is still being written, each with the chain that does it.
    lost: at each step, how often a stage that began there lost its worker.
    unsaved: at each step, how often its checkpoint could not be written.
    trained: the last step that was trained here and recorded, by a stage's end or a checkpoint inside one.
    failures: what the user's code raised here since a stage was completed: (step, signature) and the slots, in order.
    """

    id: NodeId
    parent: NodeId | None
    start: int
    hp: Mapping[str, Any]
    children: list[NodeId] = field(default_factory=list)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    metrics: dict[int, e.Metrics] = field(default_factory=dict)
    waiting: dict[int, set[TrialKey]] = field(default_factory=dict)
    running: dict[tuple[ChainId, int], tuple[int, int]] = field(default_factory=dict)
    saving: dict[int, ChainId] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    unsaved: dict[int, int] = field(default_factory=dict)
    failures: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    steps_run: int = 0
    seconds: float = 0.0
    trained: int = 0
    _segment: Segment | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.trained = max(self.trained, self.start)

    @property
    def segment(self) -> Segment:
        """What is in force from its start on. Raises `stagetree.sequences.SequenceError`."""
        if self._segment is None:
            self._segment = segment_at(self.hp, self.start)
        return self._segment

    def covers(self, step: int, progress: Progresses = NO_PROGRESS) -> bool:
        """True when a stage under way will pass `step` here, or evaluates what is kept there.

        What it has passed, it will not pass again; but its end is kept in any case.
        """
        return any(
            _is_covered(step, start, end, progress.get(chain)) for (chain, _), (start, end) in self.running.items()
        )

    def coming(self, progress: Progresses = NO_PROGRESS) -> Iterator[int]:
        """The steps at which its state will be kept, once the stages under way are over and everything is saved."""
        yield from self.saving
        for (chain, _), (start, end) in self.running.items():
            yield end
            if chain in progress:
                yield from (step for step in progress[chain].saving if start < step < end)


def _is_covered(step: int, start: int, end: int, progress: Progress | None) -> bool:
    if step == end:
        return True
    if progress is not None and step in progress.saving:
        return start < step < end
    return max(start, progress.step if progress else start) < step < end


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """One line of a study's history, which is all that a tuner is told.

    kind: `START` (a trial was asked to train for `steps`), `PROMOTE` (the same trial is asked for more), `STOP` (no
    more of it is wanted), `PRIORITIZE` (it has this `priority` now), `RESULT` (its `metrics` after `steps`), `FAIL` or
    `CANCEL` (no result will come). `hp`: of a start, the configuration.
    """

    kind: TrialEventKind
    trial: int
    steps: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    reason: Mapping[str, Any] = field(default_factory=dict)
    hp: Mapping[str, Any] = field(default_factory=dict)
    priority: float = 0.0


@dataclass(slots=True)
class Trial:
    """A configuration asked to train: its path through the plan, the steps it was asked for, and how it stands.

    unevaluated: steps that were trained before it came, whose state is kept and is to be evaluated for its study's
    `eval_every`. They are no results: nothing depends on them but the end of the trial. priority, standing: how urgent
    its tuner says that it is among the trials of its study, and why, where it does.
    """

    study: StudyId
    number: int
    hp: dict[str, Any]
    reason: dict[str, Any]
    path: list[NodeId] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    unevaluated: set[int] = field(default_factory=set)
    state: TrialState = TrialState.ACTIVE
    error: dict[str, Any] | None = None
    priority: float = 0.0
    standing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> TrialKey:
        return (self.study, self.number)

    @property
    def steps(self) -> int:
        """The most steps it was asked for."""
        return self.asked[-1]


@dataclass(slots=True)
class Study:
    """One search by one tuner.

    deepest: the last step that its trials asked for in each node they pass: what "unique" counts.
    history: what happened to its trials, in the order of the log. failed: the numbers of the trials that did.
    executed: the steps that were run for it; fresh: those of them that nobody had trained before.
    """

    id: StudyId
    spec: dict[str, Any]
    submitted_at: float
    state: StudyState = StudyState.RUNNING
    finished_at: float | None = None
    error: str | None = None
    trials: list[Trial] = field(default_factory=list)
    history: list[TrialEvent] = field(default_factory=list)
    deepest: dict[NodeId, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    active: int = 0
    answered: int = 0
    requested: int = 0
    unique: int = 0
    executed: int = 0
    fresh: int = 0
    gpu_seconds: float = 0.0

    @property
    def merges(self) -> bool:
        return bool(self.spec.get("merge", True))

    def root_of(self, trial: int) -> str:
        """What its first node is named after: nothing, or the trial itself where the study does not merge."""
        return "" if self.merges else f"{self.id}/{trial}"

    @property
    def max_restarts(self) -> int:
        """How often an error at one step is tried again in a fresh process before it fails a trial."""
        return int(self.spec.get("max_restarts", MAX_RESTARTS))

    @property
    def max_failures(self) -> int | None:
        """How many of its trials may fail before the study does; None for any number."""
        most = self.spec.get("max_failures")
        return None if most is None else int(most)

    @property
    def is_running(self) -> bool:
        return self.state == StudyState.RUNNING

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(slots=True)
class Chain:
    """Stages under way on a slot; `index` is the one in training, past the last while checkpoints are written.

    seconds: spent on the stages before that one.
    """

    id: ChainId
    slot: str
    stages: tuple[e.Stage, ...]
    at: float
    index: int = 0
    seconds: float = 0.0

    @property
    def is_trained(self) -> bool:
        return self.index >= len(self.stages)


@dataclass(slots=True)
class SearchPlan:
    """All trials of all studies on one trainer, version, arguments and seed.

    measured: the nodes that have run steps, in the order of their first. version: of the stream, as of the last event
    folded. touched: nodes whose outstanding work may have changed since whoever cares last emptied it. struck: the
    studies whose events are not folded. aside: nodes that only they passed, which are no part of the tree. unheard: the
    studies of which no evaluation has reported the metric yet.
    """

    opened: e.PlanOpened | None = None
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    roots: list[NodeId] = field(default_factory=list)
    studies: dict[StudyId, Study] = field(default_factory=dict)
    chains: dict[ChainId, Chain] = field(default_factory=dict)
    stages_run: int = 0
    measured: list[NodeId] = field(default_factory=list)
    intermediate_bytes: int = 0
    version: int = 0
    touched: set[NodeId] = field(default_factory=set)
    struck: frozenset[StudyId] = frozenset()
    aside: dict[NodeId, Node] = field(default_factory=dict)
    unheard: dict[StudyId, None] = field(default_factory=dict)

    def node(self, name: NodeId) -> Node:
        """The node of that name; one that only a struck study passed is not in the tree. Raises KeyError."""
        if name in self.nodes or not self.struck:
            return self.nodes[name]
        return self.aside.setdefault(name, Node(name, None, 0, {}))

    def trial(self, key: TrialKey) -> Trial:
        return self.studies[key[0]].trials[key[1]]

    def wanted(self, node: Node, step: int) -> Iterator[Study]:
        """The running studies of the trials that wait for a result at this step."""
        for study, _ in node.waiting.get(step, ()):
            if self.studies[study].is_running:
                yield self.studies[study]

    def node_of(self, trial: Trial, step: int) -> Node:
        """The node in which the trial takes the last of its first `step` steps."""
        starts = [self.nodes[node].start for node in trial.path]
        return self.nodes[trial.path[bisect_right(starts, step - 1) - 1]]

    def ends(self, trial: Trial) -> Iterator[tuple[NodeId, int]]:
        """The nodes on the trial's path, each with the last step that the trial takes there."""
        ends = [*(self.nodes[name].start for name in trial.path[1:]), trial.steps]
        return zip(trial.path, ends, strict=True)

    def metrics(self, trial: Trial, step: int) -> Mapping[str, float | None] | None:
        """What is known of the trial after `step` steps."""
        return self.node_of(trial, step).metrics.get(step)

    def curve(self, trial: Trial) -> Iterator[tuple[int, Mapping[str, float | None]]]:
        """Every evaluation on the trial's path up to the steps it was asked for, in order of steps."""
        for name, end in self.ends(trial):
            found = self.nodes[name].metrics
            yield from ((step, found[step]) for step in sorted(found) if step <= end)

    def ancestry(self, name: NodeId) -> list[Node]:
        """The node and its ancestors, root first."""
        path = [self.nodes[name]]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return path[::-1]

    def waiting_beyond(self, node: Node, step: int) -> Iterator[TrialKey]:
        """The trials that wait for a result which takes training `node` past `step`."""
        return (key for key, _ in self.waits_beyond(node, step))

    def waits_beyond(self, node: Node, step: int) -> Iterator[tuple[TrialKey, int]]:
        """As `waiting_beyond`, each with the step that it waits for."""
        for below in self.beyond(node, step):
            for at, keys in below.waiting.items():
                if at > step:
                    yield from ((key, at) for key in sorted(keys))

    def beyond(self, node: Node, step: int) -> Iterator[Node]:
        """The node and, each before its own children, all nodes below it that begin after `step`, however deep."""
        ways = [iter([node])]
        while ways:
            found = next(ways[-1], None)
            if found is None:
                ways.pop()
            else:
                yield found
                ways.append(self.nodes[name] for name in found.children if self.nodes[name].start > step)
