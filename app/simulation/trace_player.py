"""Plays recorded trials again: the real plan, frontier and tuner on virtual slots, with the times that were measured.

(HyperDrive, §7.1.) What a tuner decides is its own; what comes of it is looked up in the traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any

from app.domain import events as e
from app.domain.ids import StudyId
from app.domain.search_plan import Node
from app.simulation.pace import NO_OVERHEADS, Overheads
from app.simulation.simulator import Simulator
from app.simulation.traces import Trace, Workload
from app.tuning.samplers.base import NonAdaptive, Proposal
from app.tuning.tuners import TunerDriver
from stagetree.spec import StudySpec

STUDY = StudyId("played")
NUMBER = "trace"
"""The name of a hyper-parameter that says which recorded trial it is."""

Part = tuple[int, int, int]
"""Of a trial by its number, the steps from the second on to the third."""


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
    """One study on recorded trials.

    tuner: as in a study file; `random` trains all to the end. target: what is waited for. switch: seconds that it takes
    to leave a trial and to take it up again, in all, where it did not go on at once. took: the seconds of stages that
    are known, by the number of the trace, the first and the last step. overheads: what slots spend besides. fields:
    others of the study file.
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
        self._left_at: dict[int, float] = {}  # when each trial was last left
        self.reached_at = inf
        self.simulator = Simulator(slots=slots, measure=self._measure, seconds=self._seconds, overheads=overheads)
        self.simulator.submit(STUDY, self._spec(tuner, {"eval_every": eval_every, **fields}).to_json())
        submitted = self.simulator.plan.studies[STUDY].spec
        self.simulator.set_tuner(STUDY, TunerDriver(submitted, RecordedTrials(workload)))

    def time_to_target(self) -> float:
        """Seconds until an evaluation has reached the target; infinite if none ever does."""
        while self.simulator.advance(self.reached_at):
            pass
        return self.reached_at

    def _spec(self, tuner: Mapping[str, Any], fields: Mapping[str, Any]) -> StudySpec:
        workload = self._workload
        study = {"name": workload.name, "trainer": "recorded", "merge": False, "tuner": dict(tuner)}
        study |= {"metric": workload.metric, "mode": workload.mode, **fields}
        if tuner["kind"] == "random":  # it starts trials one by one, as the others do, in the order of the workload
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
        return {self._workload.metric: self._trace(node).at(step)}

    def _seconds(self, stage: e.Stage, number: int) -> float:
        """How long a stage takes; and whether, and when, it comes to the target."""
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
