"""A source with a recorded study, and sinks that are killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from stacks import Json

from stagetree.sinks import Record, Sink, follow, open_sink

STUDY = "still-123456"
A, B, C = "node-a", "node-b", "node-c"
ALONE, ALSO = "node-alone-0", "node-alone-1"
MARK = "trained alone, since the trainer is not exact: x differs"


class Killed(Exception):
    """Raised as if the process were killed."""


class Killing:
    """A sink whose process is killed after this many writes, when the last one is not noted yet."""

    def __init__(self, sink: Sink, writes: int) -> None:
        self.folder: Path = sink.folder
        self._sink, self._left = sink, writes

    def resume(self, study: str, marks: Mapping[int, Any]) -> None:
        self._sink.resume(study, marks)

    def write(self, record: Record) -> Any:
        mark = self._sink.write(record)
        self._left -= 1
        if not self._left:
            raise Killed
        return mark

    def close(self) -> None:
        self._sink.close()


class Scripted:
    """A completed study: its events, and the curves of its trials."""

    def __init__(
        self,
        events: list[Json],
        curves: Mapping[int, list[Json]] | None = None,
        logged: Mapping[int, list[Json]] | None = None,
        exactness: str = "",
    ) -> None:
        self._exactness = {"exactness": exactness} if exactness else {}
        self._events, self._curves, self._logged = events, curves or {}, logged or {}

    def follow(self, study: str, after: int = 0) -> Iterator[Json]:
        return (event for event in self._events if event["position"] > after)

    def trial(self, study: str, number: int) -> Json:
        return {"curve": self._curves.get(number, [])}

    def logged(self, study: str, number: int) -> list[Json]:
        return self._logged.get(number, [])

    def study(self, study: str, *, trials: bool = True) -> Json:
        types = [event["type"] for event in self._events]
        begun = types.index("StudyIsolated") if "StudyIsolated" in types else 0
        numbers = {event["data"]["trial"] for event in self._events[begun:] if event["type"] == "TrialAdded"}
        ended = [{"trial": n, "state": "completed", **self._exactness} for n in sorted(numbers)]
        return {"finished_at": 99.0, "trials": ended}


def events(*happened: tuple[str, Json], first: int = 2) -> list[Json]:
    """Events with positions; the first is the submission, after earlier events of the plan."""
    numbered = enumerate([("StudySubmitted", {"study": STUDY}), *happened])
    return [
        {"position": 1 + n, "version": first + n, "type": type, "data": data, "at": 1.0 + n}
        for n, (type, data) in numbered
    ]


def trial_added(trial: int, steps: int, path: Json, study: str = STUDY) -> tuple[str, Json]:
    return "TrialAdded", {"study": study, "trial": trial, "hp": {"lr": 0.1}, "steps": steps, "path": path}


def trial_extended(trial: int, steps: int, path: Json) -> tuple[str, Json]:
    return "TrialExtended", {"study": STUDY, "trial": trial, "steps": steps, "path": path}


def step_evaluated(node: str, step: int, value: float | None) -> tuple[str, Json]:
    return "Evaluated", {"node": node, "step": step, "metrics": {"accuracy": value}}


def logged_point(step: int, node: str, loss: float) -> Json:
    return {"step": step, "node": node, "metrics": {"loss": loss}}


LOGGED = {
    0: [logged_point(7, A, 0.7), logged_point(25, B, 0.5)],
    1: [logged_point(7, A, 0.7), logged_point(27, C, 0.6)],
}
"""The logged values of the two trials of `busy_study`, which share their prefix."""


def busy_study() -> list[Json]:
    """Two trials that part after step 20."""
    return events(
        trial_added(0, 40, {A: 0, B: 20}),
        step_evaluated(A, 10, 0.1),
        trial_added(1, 40, {A: 0, C: 20}),
        step_evaluated(A, 20, 0.2),
        step_evaluated(C, 30, 0.35),
        step_evaluated(B, 40, 0.4),
        step_evaluated(C, 40, 0.45),
    )


def isolated_study() -> list[Json]:
    """The same study after its trainer proved inexact: its trials begin anew, alone."""
    return events(
        *((each["type"], each["data"]) for each in busy_study()[1:6]),
        ("StudyIsolated", {"study": STUDY, "reason": "x differs", "at": 7.0}),
        step_evaluated(B, 40, 0.99),
        trial_added(0, 40, {ALONE: 0}),
        trial_added(1, 40, {ALSO: 0}),
        step_evaluated(ALONE, 20, 0.1),
        step_evaluated(ALSO, 20, 0.15),
        step_evaluated(ALONE, 40, 0.3),
        step_evaluated(ALSO, 40, 0.35),
    )


STRUCK = "Struck: the trainer is not exact. What counts is in the runs named (alone). x differs"
LOGGED_ALONE = {0: [logged_point(7, ALONE, 0.8)], 1: [logged_point(7, ALSO, 0.9)]}

BUSY = Scripted(busy_study(), logged=LOGGED)
ISOLATED = Scripted(isolated_study(), logged=LOGGED_ALONE, exactness=MARK)


def write_study(address: str, source: Scripted = BUSY, *, killed_after: int = 0) -> None:
    """Follow a study into the sink at an address; its process is killed after this many writes."""
    if killed_after:
        with pytest.raises(Killed):
            follow(source, STUDY, [Killing(open_sink(address), killed_after)])
    else:
        follow(source, STUDY, [open_sink(address)])
