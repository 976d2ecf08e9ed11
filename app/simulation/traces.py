"""Traces: the curves of a study as recorded, with the seconds of their steps, as lines of JSON.

The first line says what was measured: `study`, `metric`, `mode`, `max_steps`. Each other line is a trial: `hp`, the
`steps` that were evaluated, the `values` of the metric there, and the `seconds` of a step before each of them. A trial
that failed ends with the value null.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.states import TrialState

Json = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """One recorded trial. values: None at the last step, if it failed there. seconds: of one step, until each."""

    hp: Mapping[str, Any]
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.steps or not len(self.steps) == len(self.values) == len(self.seconds):
            raise ValueError("a trace has a value and the seconds of a step for each of its steps, and at least one")
        before = (0, *self.steps)
        durations = ((b - a) * each for a, b, each in zip(before, self.steps, self.seconds, strict=False))
        object.__setattr__(self, "_ends", (0.0, *accumulate(durations)))

    def at(self, step: int) -> float | None:
        """The value at a step: of the last evaluation until then, else of the first one; None if it failed there."""
        number = bisect_left(self.steps, step)
        is_there = number < len(self.steps) and self.steps[number] == step
        return self.values[number if is_there else max(number - 1, 0)]

    def time(self, step: int) -> float:
        """The seconds from the beginning until a step; beyond the recording as fast as at its end."""
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
        """The best value of a trial; the worst there is for one that has none."""
        values = [value for value in trace.values if value is not None]
        worst = float("-inf") if self.mode == "max" else float("inf")
        return (max if self.mode == "max" else min)(values, default=worst)

    def taken(self, order: Iterable[int]) -> Workload:
        """These of its trials, in this order."""
        return replace(self, traces=tuple(self.traces[number] for number in order))


def record(plan: SearchPlan, study: Study) -> Iterator[Json]:
    """The lines of a study's traces; of trials that were never evaluated there is none."""
    most = max((trial.steps for trial in study.trials), default=0)
    yield {"study": study.id, "metric": study.metric, "mode": study.mode, "max_steps": most}
    for trial in study.trials:
        line = _line(plan, trial, study.metric)
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
    """The workload that these lines record. Raises ValueError with a sentence for what is none."""
    objects = [json.loads(line) for line in lines if line.strip()]
    if not objects or "metric" not in objects[0]:
        raise ValueError("the first line of recorded curves says what was measured: study, metric, mode, max_steps")
    head, fields = objects[0], ("steps", "values", "seconds")
    traces = (Trace(line["hp"], *(tuple(line[name]) for name in fields)) for line in objects[1:])
    return Workload(head["study"], head["metric"], head["mode"], head["max_steps"], tuple(traces))
