"""Folds over a study's events: the measurements of each trial's run, and the stages that slots trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from stagetree.sinks.base import Began, Json, Key, Link, Mark, Point, Record, RunRecord, SinkError, Struck, run_of
from stagetree.text import Metrics, deviations, means


@dataclass
class _Path:
    """The nodes of one training path."""

    starts: dict[str, int] = field(default_factory=dict)
    """The first step of each node, root first."""
    ends: dict[str, int] = field(default_factory=dict)
    """The last step along each node."""

    def grow(self, path: Mapping[str, int], steps: int) -> None:
        self.starts.update(path)
        self.ends = dict(zip(self.starts, [*list(self.starts.values())[1:], steps], strict=True))

    def passes(self, node: str, step: int) -> bool:
        return step <= self.ends.get(node, -1)

    def node_at(self, step: int) -> str | None:
        """The node that contains a step; None if the path is not that long yet."""
        return next((name for name, end in self.ends.items() if step <= end), None)


@dataclass
class _Trial:
    ways: list[_Path]
    """The paths of its repeats; for most trials, one."""
    steps: int = 0
    linked: int = 0
    """The last step up to which a link to another trial was reported."""

    def grow(self, paths: Sequence[Mapping[str, int]], steps: int) -> None:
        self.steps = max(self.steps, steps)
        for way, path in zip(self.ways, paths, strict=True):
            way.grow(path, self.steps)

    def passes(self, node: str, step: int) -> bool:
        return any(way.passes(node, step) for way in self.ways)

    def nodes_at(self, step: int) -> list[str]:
        """The unique nodes in which its repeats reach a step."""
        nodes = (way.node_at(step) for way in self.ways)
        return list(dict.fromkeys(node for node in nodes if node is not None))


class Runs:
    """Converts the events of a study to records: one point per step in the run of each trial that passes it.

    written: the keys of records already written, which are skipped. is_alone: whether the study has restarted
    without sharing.
    """

    def __init__(self, study: str, written: Set[Key]) -> None:
        self._study, self._written = study, written
        self.is_alone = False
        self._trials: dict[int, _Trial] = {}
        self._passing: dict[str, set[int]] = {}
        self._measured: dict[str, dict[int, tuple[Metrics, float]]] = {}

    def take(self, event: Json) -> list[Record]:
        """The records for the next event."""
        data = event["data"]
        if event["type"] == "Evaluated":
            return self.add_measurement(data["node"], data["step"], data["metrics"], event["at"])
        if event["type"] in ("TrialAdded", "TrialExtended") and data["study"] == self._study:
            return self._grow(event)
        if event["type"] == "StudyIsolated" and data["study"] == self._study:
            # From here on, the numbers belong to new trials, which share nothing.
            struck: list[Record] = [
                Struck(number, data["reason"], at=event["at"], is_alone=self.is_alone) for number in self._trials
            ]
            self._trials, self._passing, self.is_alone = {}, {}, True
            return struck
        return []

    def add_measurement(self, node: str, step: int, metrics: Metrics, at: float) -> list[Record]:
        """The records for a measurement."""
        self._measured.setdefault(node, {})[step] = (metrics, at)
        return self._points(node, step)

    def add_mean(self, trial: int, step: int, metrics: Metrics, at: float) -> list[Record]:
        """The records for a measurement that another study made on a trial's path. The metrics are the trial's own, so
        means.
        """
        nodes = self.nodes_at(trial, step)
        if len(nodes) == 1:
            return self.add_measurement(nodes[0], step, metrics, at)
        is_new = nodes and ("point", run_of(trial, self.is_alone), step) not in self._written
        return [Point(trial, step, metrics, at=at, is_alone=self.is_alone)] if is_new else []

    def nodes_at(self, trial: int, step: int) -> list[str]:
        """The nodes in which a trial's repeats reach a step; empty if its path is not that long yet."""
        return self._trials[trial].nodes_at(step) if trial in self._trials else []

    def first_passing(self, node: str, step: int) -> int | None:
        """The first trial whose path leads through a node to a step."""
        return min(self._passing_at(node, step), default=None)

    def _passing_at(self, node: str, step: int) -> list[int]:
        return [number for number in self._passing.get(node, ()) if self._trials[number].passes(node, step)]

    def passes(self, trial: int, node: str, step: int) -> bool:
        """Whether a trial's path leads through a node to a step."""
        return trial in self._passing_at(node, step)

    def _points(self, node: str, step: int) -> list[Record]:
        """Points for the runs that lack this one. The first run shares it with the others.

        A trial with repeats gets its point when all of them are measured.
        """
        nodes = {number: self._trials[number].nodes_at(step) for number in self._passing_at(node, step)}
        alike = {
            number: tuple(each)
            for number, each in sorted(nodes.items())
            if all(step in self._measured.get(node, ()) for node in each)
        }
        new = [n for n in alike if ("point", run_of(n, self.is_alone), step) not in self._written]
        points = list[Record]()
        for number in new:
            same = [n for n, each in alike.items() if each == alike[number]]
            had = next((n for n in same if n not in new), same[0])
            points.append(self._point(number, step, alike[number], None if number == had else had))
        return points

    def _point(self, number: int, step: int, nodes: Sequence[str], shared_with: int | None) -> Point:
        measured = [self._measured[node][step] for node in nodes]
        metrics, at = [each for each, _ in measured], max(at for _, at in measured)
        return Point(
            number,
            step,
            means(metrics),
            at=at,
            is_alone=self.is_alone,
            shared_with=shared_with,
            deviations=deviations(metrics),
        )

    def _grow(self, event: Json) -> list[Record]:
        data, at = event["data"], event["at"]
        if data["path"] is None:
            raise SinkError(f"trial {data['trial']} comes from a version that did not record its nodes")
        number = int(data["trial"])
        is_new = number not in self._trials
        paths = [data["path"], *data.get("repeats", ())]
        trial = self._trials.setdefault(number, _Trial([_Path() for _ in paths]))
        trial.grow(paths, data["steps"])
        for node in (node for path in paths for node in path):
            self._passing.setdefault(node, set()).add(number)
        began: list[Record] = [Began(number, data["hp"], at=at, is_alone=self.is_alone)] if is_new else []
        # Measurements on the path from before the trial used it.
        nodes = dict.fromkeys(node for way in trial.ways for node in way.starts)
        places = ((node, step) for node in nodes for step in sorted(self._measured.get(node, ())))
        earlier = [record for place in places for record in self._points(*place)]
        return [*began, *self._link(number, trial, at), *earlier]

    def _link(self, number: int, trial: _Trial, at: float) -> list[Record]:
        """A link to the earliest trial that shares most steps, if these are more than before."""
        end, other = self._nearest(number, trial)
        if end <= trial.linked:
            return []
        trial.linked = end
        return [Link(number, other, end, at=at, is_alone=self.is_alone)]

    def _nearest(self, number: int, trial: _Trial) -> tuple[int, int]:
        """The last shared step, and the trial that shares it. Sharing a node implies sharing all before it."""
        for node, end in reversed(trial.ways[0].ends.items()):
            all_ends = ((n, way.ends) for n in self._passing[node] if n != number for way in self._trials[n].ways)
            others = [(min(end, ends[node]), -n) for n, ends in all_ends if node in ends]
            if others:
                shared, other = max(others)
                return shared, -other
        return 0, 0


Measured = tuple[float, int, Mapping[str, float | None]]
"""Unix seconds of an evaluation, its step, and the metrics."""


@dataclass(frozen=True)
class StageRun(RunRecord):
    """A slot completed stage number `index` of a chain, or stopped within it.

    trial: the first that passes there. free_at: when the slot could start on it, in Unix seconds. proof: the kind of
    proof if it repeats steps for comparison; empty if it trains new steps. start, end: its first and last step.
    seconds: the slot's time for it. outcome: `completed`, `failed`, or how its chain ended. error: why it failed.
    """

    chain: str
    index: int
    slot: str
    node: str
    free_at: float
    proof: str
    start: int
    end: int
    seconds: float
    outcome: str
    error: str
    measured: tuple[Measured, ...]

    @property
    def key(self) -> Key:
        return ("stage", self.run, self.chain, self.index)


@dataclass
class _Chain:
    slot: str
    stages: Sequence[Json]
    proof: str
    free_at: float
    """When the slot could start on the stage."""
    index: int = 0
    """The next or current stage."""


@dataclass
class Stages:
    """Converts the events of a study to the stages that slots trained."""

    trial_of: Callable[[str, int], int | None]
    """The first trial that passes a node at a step, or None."""
    _chains: dict[str, _Chain] = field(default_factory=dict)
    _measured: dict[str, list[Measured]] = field(default_factory=lambda: defaultdict(list))

    def take(self, event: Json, *, is_alone: bool) -> list[StageRun]:
        """The stages that the next event completes. is_alone: as in `RunRecord`."""
        data, at = event["data"], event["at"]
        match event["type"]:
            case "ChainAssigned":
                self._chains[data["chain"]] = _Chain(data["slot"], data["stages"], data.get("proof") or "", at)
            case "Evaluated":
                self._measured[data["node"]].append((at, data["step"], data["metrics"]))
            case "StageCompleted" if chain := self._chains.get(data["chain"]):
                runs = self._run(chain, data, at, "completed")
                chain.index, chain.free_at = chain.index + 1, at
                return [replace(each, is_alone=is_alone) for each in runs]
            case "StageFailed" | "ChainEnded" if chain := self._chains.pop(data["chain"], None):
                return [replace(each, is_alone=is_alone) for each in self._end_chain(chain, event)]
        return []

    def _end_chain(self, chain: _Chain, event: Json) -> list[StageRun]:
        """End a chain, perhaps within a stage."""
        data = event["data"]
        if chain.index >= len(chain.stages) or not (data.get("steps") or data.get("error") or data["seconds"]):
            return []
        failed = event["type"] == "StageFailed"
        return self._run(chain, data, event["at"], "failed" if failed else data["outcome"])

    def _run(self, chain: _Chain, data: Json, at: float, outcome: str) -> list[StageRun]:
        stage = chain.stages[chain.index]
        node, start = stage["node"], stage["start"]
        end = stage["end"] if outcome == "completed" else data.get("step", start + data.get("steps", 0))
        measured = [each for each in self._measured[node] if start < each[1] <= end]
        self._measured[node] = [each for each in self._measured[node] if each not in measured]
        if (trial := self.trial_of(node, stage["end"])) is None:
            return []
        given = (data["chain"], chain.index, chain.slot, node, chain.free_at, chain.proof)
        trained = (start, end, data["seconds"], outcome, data.get("error", ""), tuple(measured))
        return [StageRun(trial, *given, *trained, at=at)]


@runtime_checkable
class TakesStages(Protocol):
    """A sink that also receives stages."""

    def write_stage(self, record: StageRun) -> Mark:
        """Write a stage durably. Raises `SinkError`."""
