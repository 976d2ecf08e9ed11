"""Traces: recorded curves of a study with the seconds of their steps, as JSON lines, and their replay.

The first line describes the measurement: `study`, `metric`, `mode`, `max_steps`. Every other line is a trial: `hp`, the
evaluated `steps`, the `values` of the metric there, and the `seconds` per step before each of them. A failed trial ends
with the value null.

Recorded trials are played (HyperDrive, §7.1) with the real plan, frontier and tuner on virtual slots, with the measured
times: the tuner decides for itself, and the results are looked up in the traces.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from types import MappingProxyType
from typing import Any

from app.domain import events as e
from app.domain.search_plan import Node, SearchPlan, Study, Trial
from app.domain.terms import StudyId, TrialState
from app.search.samplers.base import NonAdaptive, Proposal
from app.search.tuners import TunerDriver
from app.simulation.pace import NO_OVERHEADS, Overheads
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

Json = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """A recorded trial."""

    hp: Mapping[str, Any]
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    """None at the last step if the trial failed there."""
    seconds: tuple[float, ...]
    """Per step, before each of `steps`."""

    def __post_init__(self) -> None:
        if not self.steps or not len(self.steps) == len(self.values) == len(self.seconds):
            raise ValueError("a trace has a value and the seconds of a step for each of its steps, and at least one")
        before = (0, *self.steps)
        durations = ((b - a) * each for a, b, each in zip(before, self.steps, self.seconds, strict=False))
        object.__setattr__(self, "_ends", (0.0, *accumulate(durations)))

    def value(self, step: int) -> float | None:
        """The value at a step: that of the last evaluation, before the first one that of the first; None where the
        trial failed.
        """
        number = bisect_left(self.steps, step)
        is_there = number < len(self.steps) and self.steps[number] == step
        return self.values[number if is_there else max(number - 1, 0)]

    def time(self, step: int) -> float:
        """The seconds from the beginning until a step; after the recording as fast as at its end."""
        number = min(bisect_left(self.steps, step), len(self.steps) - 1)
        begin = (0, *self.steps)[number]
        ends: tuple[float, ...] = self._ends  # type: ignore[attr-defined]
        return ends[number] + (step - begin) * self.seconds[number]


@dataclass(frozen=True)
class Workload:
    """Recorded trials of one study."""

    name: str
    metric: str
    mode: str
    max_steps: int
    traces: tuple[Trace, ...]

    def is_reached(self, value: float | None, target: float) -> bool:
        """Whether a value is as good as the target."""
        return value is not None and (value >= target if self.mode == "max" else value <= target)

    def best(self, trace: Trace) -> float:
        """The best value of a trial; infinitely bad for a trial without values."""
        values = [value for value in trace.values if value is not None]
        worst = float("-inf") if self.mode == "max" else float("inf")
        return (max if self.mode == "max" else min)(values, default=worst)

    def select(self, order: Iterable[int]) -> Workload:
        """These trials, in this order."""
        return replace(self, traces=tuple(self.traces[number] for number in order))


def record(plan: SearchPlan, study: Study) -> Iterator[Json]:
    """The lines of a study's traces, without trials that were never evaluated."""
    most = max((trial.steps for trial in study.trials), default=0)
    yield {"study": study.id, "metric": study.spec.metric, "mode": study.spec.mode, "max_steps": most}
    for trial in study.trials:
        line = _line(plan, trial, study.spec.metric)
        if line["steps"]:
            yield line


def _line(plan: SearchPlan, trial: Trial, metric: str) -> Json:
    curve = [(step, metrics.get(metric)) for step, metrics in plan.curve(trial)]
    if trial.state == TrialState.FAILED and all(value is not None for _, value in curve):
        curve.append((1 + max((step for step, _ in curve), default=0), None))
    seconds = [_seconds_per_step(plan, trial, step) for step, _ in curve]
    return {
        "hp": trial.hp,
        "steps": [step for step, _ in curve],
        "values": [value for _, value in curve],
        "seconds": seconds,
    }


def _seconds_per_step(plan: SearchPlan, trial: Trial, step: int) -> float:
    node = plan.node_of(trial, step)
    return float(f"{node.seconds / node.steps_run:.4g}") if node.steps_run else 0.0


def read(lines: Iterable[str]) -> Workload:
    """Parse the lines of a workload. Raises ValueError with a sentence if they are none."""
    objects = [json.loads(line) for line in lines if line.strip()]
    if not objects or "metric" not in objects[0]:
        raise ValueError("the first line of recorded curves must have study, metric, mode and max_steps")
    head, fields = objects[0], ("steps", "values", "seconds")
    traces = (Trace(line["hp"], *(tuple(line[name]) for name in fields)) for line in objects[1:])
    return Workload(head["study"], head["metric"], head["mode"], head["max_steps"], tuple(traces))


STUDY = StudyId("played")
NUMBER = "trace"
"""The hyper-parameter with the index of the recorded trial."""

Part = tuple[int, int, int]
"""The index of a trace, and the first and last step of a stage."""


class RecordedTrials(NonAdaptive):
    """The configurations of a workload, in its order."""

    def __init__(self, workload: Workload) -> None:
        self._traces = workload.traces

    def propose(self, number: int) -> Proposal | None:
        if number >= len(self._traces):
            return None
        return Proposal({**self._traces[number].hp, NUMBER: {"family": "constant", "value": number}})

    def size(self) -> int | None:
        return len(self._traces)


class Player:
    """Plays one study on recorded trials.

    tuner: as in a study file; `random` trains all trials to the end. target: the value to reach. switch: the seconds
    for leaving a trial and resuming it later. took: known seconds of stages. overheads: of slots. fields: further
    fields of the study file.
    """

    def __init__(
        self,
        workload: Workload,
        tuner: Mapping[str, Any],
        *,
        slots: int,
        target: float,
        eval_every: int | None = None,
        switch: float = 0.0,
        took: Mapping[Part, float] = MappingProxyType({}),
        overheads: Overheads = NO_OVERHEADS,
        **fields: Any,
    ) -> None:
        self._workload, self._target = workload, target
        self._switch, self._took = switch, took
        self._left_at: dict[int, float] = {}  # the end of each trial's last stage
        self.reached_at = inf
        self.simulator = Simulator(slots=slots, measure=self._measure, seconds=self._seconds, overheads=overheads)
        self.simulator.submit(STUDY, self._spec(tuner, {"eval_every": eval_every, **fields}).to_json())
        submitted = self.simulator.plan.studies[STUDY].spec.json
        self.simulator.set_tuner(STUDY, TunerDriver(submitted, RecordedTrials(workload)))

    def time_to_target(self) -> float:
        """Seconds until an evaluation reaches the target; infinite if none does."""
        while self.simulator.advance(self.reached_at):
            pass
        return self.reached_at

    def _spec(self, tuner: Mapping[str, Any], fields: Mapping[str, Any]) -> StudySpec:
        workload = self._workload
        study = {"name": workload.name, "trainer": "recorded", "merge": False, "tuner": dict(tuner)}
        study |= {"metric": workload.metric, "mode": workload.mode, **fields}
        if tuner["kind"] == "random":  # as ASHA with one rung, to start trials one by one like the others
            steps = tuner["max_steps"]
            study["tuner"] = {"kind": "asha", "num_trials": tuner["num_trials"], "min_steps": steps, "max_steps": steps}
        return StudySpec.from_dict(study | {"space": {NUMBER: 0}})

    def _number(self, node: Node) -> int:
        value = node.segment.values(node.start)[NUMBER]
        assert isinstance(value, int | float)
        return int(value)

    def _trace(self, node: Node) -> Trace:
        return self._workload.traces[self._number(node)]

    def _measure(self, node: Node, step: int) -> e.Metrics:
        return {self._workload.metric: self._trace(node).value(step)}

    def _seconds(self, stage: e.Stage, number: int) -> float:
        """The duration of a stage; also records when the target is reached."""
        node, now = self.simulator.plan.nodes[stage.node], self.simulator.now
        trace, trial = self._trace(node), self._number(node)
        training = trace.time(stage.end) - trace.time(stage.start)
        before = self._switch if stage.start and self._left_at.get(trial) != now else 0.0
        seconds = self._took.get((trial, stage.start, stage.end), before + training)
        for step, value in zip(trace.steps, trace.values, strict=True):
            if stage.start < step <= stage.end and self._workload.is_reached(value, self._target):
                at = now + seconds - (trace.time(stage.end) - trace.time(step))
                self.reached_at = min(self.reached_at, at)
                break
        self._left_at[trial] = now + seconds
        return seconds
