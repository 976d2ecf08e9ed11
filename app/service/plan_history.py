"""The history of a plan: the times of its events, the spans that slots trained, its decisions and its results.

A history grows event by event while the plan is folded, or else it is read from the log: a long one only once a chart
needs it. It also answers for earlier moments.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from app.domain import events as e
from app.domain.evolve import collector_paused
from app.domain.terms import ChainId, NodeId, StudyId, VerificationKind
from app.events import EventLog, StoredEvent
from stagetree.text import means

Json = dict[str, Any]

BATCH = 5_000
KEPT = 16
"""The number of histories in memory."""

KEPT_EVENTS = 50_000
"""The most events of these, without the newest history: each takes up to a kilobyte."""

LONG = 20_000
"""A history of more events is dropped while it grows, unless it was needed before."""

DECISION_KINDS: dict[type[e.Event], str] = {
    e.TrialAdded: "start",
    e.TrialExtended: "promote",
    e.TrialStopped: "stop",
    e.TrialCancelled: "cancel",
    e.TrialRetried: "retry",
    e.StudyPaused: "pause",
    e.StudyResumed: "resume",
    e.StudyReopened: "reopen",
    e.StudyCompleted: "complete",
    e.StudyCancelled: "cancel study",
    e.StudyFailed: "fail study",
    e.StudyIsolated: "isolate",
}


@dataclass(slots=True)
class SlotSpan:
    """A stage on a slot, from one event to another, each by version and time.

    The span of a proof covers all stages of its chain, and has the node of the last one.
    """

    chain: ChainId
    slot: str
    stage: e.Stage
    begun: int
    begun_at: float
    ended: int | None = None
    ended_at: float | None = None
    seconds: float = 0.0
    """Slot time."""

    outcome: str = "running"
    proof: VerificationKind | None = None
    """Why the steps were trained again to compare them; None for ordinary training."""

    members: tuple[str, ...] = ()
    """The slots that are lent to this one."""

    kind: str = ""
    """The kind of device."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of the span, the leader first."""
        return (self.slot, *self.members)


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A decision about a trial, or about the study (`trial` is None), with the version of its event."""

    version: int
    kind: str
    trial: int | None
    steps: int | None
    reason: Json


@dataclass(frozen=True, slots=True)
class Measured:
    """A result of a trial (the mean of repeats), with its event, its time, and the study's slot time until then."""

    version: int
    at: float
    slot_seconds: float
    trial: int
    step: int
    metrics: Mapping[str, float | None]


@dataclass(slots=True)
class _Life:
    """A study's decisions and results since an event. paths: for each repeat of each trial, the start of each node."""

    since: int = 0
    decisions: list[DecisionMade] = field(default_factory=list)
    results: list[Measured] = field(default_factory=list)
    paths: dict[int, list[dict[NodeId, int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _StudyHistory:
    """The history of one study. An isolation ends a life and begins another; the last one counts.

    Earlier lives serve queries about earlier moments. slot_seconds: the sum over all lives.
    """

    lives: list[_Life] = field(default_factory=lambda: [_Life()])
    slot_seconds: float = 0.0

    @property
    def life(self) -> _Life:
        return self.lives[-1]

    def life_at(self, version: int | None) -> _Life:
        """The life after an event, by default the last one."""
        if version is None:
            return self.life
        return next((each for each in reversed(self.lives) if each.since <= version), self.lives[0])


class PlanHistory:
    """The history of one stream, up to `version`."""

    def __init__(self) -> None:
        self.is_needed = False
        self.times = array("d")
        self.spans: list[SlotSpan] = []
        self.marks: list[tuple[int, str, int, int]] = []
        """(version, kind, index of the span, step)"""
        self._studies: dict[StudyId, _StudyHistory] = {}
        self._chains: dict[ChainId, e.ChainAssigned] = {}
        self._under_way: dict[ChainId, int] = {}
        self._last_in: dict[NodeId, int] = {}
        self._wanted: dict[tuple[NodeId, int], list[tuple[StudyId, int]]] = {}
        self._metrics: dict[tuple[NodeId, int], e.Metrics] = {}

    @property
    def version(self) -> int:
        return len(self.times)

    def decisions(self, study: StudyId, version: int | None = None) -> list[DecisionMade]:
        """From the study's life after an event. Later ones may be among them."""
        return self._history_of(study).life_at(version).decisions

    def stages(self, chain: ChainId) -> tuple[e.Stage, ...]:
        """The stages of a chain."""
        return self._chains[chain].stages

    def results(self, study: StudyId, version: int | None = None) -> list[Measured]:
        """From the study's life after an event. Later ones may be among them."""
        return self._history_of(study).life_at(version).results

    def take_all(self, batch: Sequence[StoredEvent]) -> None:
        """The next events."""
        for recorded in batch:
            self._take(recorded)

    def _take(self, recorded: StoredEvent) -> None:
        self.times.append(recorded.at)
        event = recorded.event
        if isinstance(event, e.StudyIsolated):
            self._strike(event.study)
        if (kind := DECISION_KINDS.get(type(event))) is not None:
            self._decide(event, kind)
        match event:
            case e.TrialAdded() | e.TrialExtended():
                self._ask(event)
            case e.ChainAssigned():
                self._chains[event.chain] = event
                self._begin(event.chain, 0)
            case e.StageCompleted():
                self._pay(event.chain, event.index, event.seconds)
                self._end(event.chain, "done")
                self._begin(event.chain, event.index + 1)
            case e.StageFailed():
                self._pay(event.chain, event.index, event.seconds)
                self._end(event.chain, "failed")
            case e.ChainEnded():
                if self._chains[event.chain].proof is not None:
                    self._pay(event.chain, 0, event.seconds)
                self._end(event.chain, str(event.outcome))
            case e.Evaluated():
                self._metrics[event.node, event.step] = event.metrics
                self._mark("evaluated", event.node, event.step)
                for study, trial in self._wanted.get((event.node, event.step), ()):
                    self._record(study, trial, event.step)
            case e.CheckpointKept():
                self._mark("kept", event.node, event.step)

    def _history_of(self, study: StudyId) -> _StudyHistory:
        return self._studies.setdefault(study, _StudyHistory())

    def _strike(self, study: StudyId) -> None:
        """Void the study's trials and results. New trials reuse their numbers."""
        self._history_of(study).lives.append(_Life(self.version))
        for place, waiting in list(self._wanted.items()):
            self._wanted[place] = [each for each in waiting if each[0] != study]

    def _decide(self, event: Any, kind: str) -> None:
        details = (getattr(event, "trial", None), getattr(event, "steps", None), getattr(event, "reason", {}))
        if isinstance(event, e.StudyIsolated):
            details = (None, None, {"difference": event.reason})
        self._history_of(event.study).life.decisions.append(DecisionMade(self.version, kind, *details))

    def _ask(self, event: e.TrialAdded | e.TrialExtended) -> None:
        """A trial needs a result at a step, which may exist already."""
        paths = self._history_of(event.study).life.paths.setdefault(event.trial, [])
        paths += [{} for _ in range(1 + len(event.repeats) - len(paths))]
        for path, way in zip(paths, (event.path, *event.repeats), strict=False):
            path.update(way or {})
        for node in _ends(paths, event.steps):
            self._wanted.setdefault((node, event.steps), []).append((event.study, event.trial))
        self._record(event.study, event.trial, event.steps)

    def _record(self, study: StudyId, trial: int, step: int) -> None:
        """Record the result of a trial at a step, once all of its repeats are measured there."""
        history = self._history_of(study)
        found = [self._metrics.get((node, step)) for node in _ends(history.life.paths[trial], step)]
        if known := [each for each in found if each is not None and None not in found]:
            result = Measured(self.version, self.times[-1], history.slot_seconds, trial, step, means(known))
            history.life.results.append(result)

    def _begin(self, chain: ChainId, index: int) -> None:
        chain_work = self._chains[chain]
        if index >= len(chain_work.stages):
            return
        stage = chain_work.stages[index]
        if chain_work.proof is None:
            self._last_in[stage.node] = len(self.spans)
        else:
            stage = replace(chain_work.stages[-1], start=stage.start)
        self._under_way[chain] = len(self.spans)
        how: Any = {"proof": chain_work.proof, "members": chain_work.members, "kind": chain_work.kind}
        self.spans.append(SlotSpan(chain, chain_work.slot, stage, self.version, self.times[-1], **how))

    def _end(self, chain: ChainId, outcome: str) -> None:
        if (number := self._under_way.pop(chain, None)) is not None:
            span = self.spans[number]
            span.ended, span.ended_at, span.outcome = self.version, self.times[-1], outcome

    def _pay(self, chain: ChainId, index: int, seconds: float) -> None:
        self._history_of(self._chains[chain].stages[index].study).slot_seconds += seconds
        if (number := self._under_way.get(chain)) is not None:
            self.spans[number].seconds = seconds

    def _mark(self, kind: str, node: NodeId, step: int) -> None:
        if (number := self._last_in.get(node)) is not None:
            self.marks.append((self.version, kind, number, step))


def _ends(paths: Sequence[Mapping[NodeId, int]], step: int) -> list[NodeId]:
    """The unique nodes in which repeats reach a step. An average is measured where it begins."""
    ways = [[node for node, start in path.items() if start < step] or [*path][:1] for path in paths]
    return list(dict.fromkeys(way[-1] for way in ways if way))


class PlanHistories:
    """The histories of recently used plans. Safe to share between threads."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._kept: OrderedDict[str, tuple[PlanHistory, Lock]] = OrderedDict()
        self._lock = Lock()

    def take(self, stream: str, recorded: Sequence[StoredEvent]) -> None:
        """Append events that another component has read, if they begin the stream or continue its history."""
        if not recorded or not (recorded[0].version == 1 or stream in self._kept):
            return
        with self._open(stream) as history:
            if recorded[0].version == history.version + 1:
                history.take_all(recorded)
            is_kept = history.is_needed or history.version <= LONG
        if not is_kept:
            with self._lock:
                self._kept.pop(stream, None)

    @contextmanager
    def holding(self, stream: str, version: int) -> Iterator[PlanHistory]:
        """The history of a plan, as far as `version` at least."""
        with self._open(stream) as history:
            history.is_needed = True
            with collector_paused():
                while history.version < version and (
                    batch := self._log.read(stream, after=history.version, limit=BATCH)
                ):
                    history.take_all(batch)
            yield history

    def clear(self) -> None:
        """Forget all of them: the log has lost events."""
        with self._lock:
            self._kept.clear()

    @contextmanager
    def _open(self, stream: str) -> Iterator[PlanHistory]:
        """The history, locked within the block."""
        with self._lock:
            history, lock = self._kept.setdefault(stream, (PlanHistory(), Lock()))
            self._kept.move_to_end(stream)
            events = sum(history.version for history, _ in self._kept.values())
            while len(self._kept) > 1 and (len(self._kept) > KEPT or events > KEPT_EVENTS):  # the least recently used
                oldest, _ = self._kept.popitem(last=False)[1]
                events -= oldest.version
        with lock:
            yield history
