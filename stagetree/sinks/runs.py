"""Whose run a measurement belongs in: a fold of a study's events, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from stagetree.sinks.base import Began, Key, Link, Point, Record, SinkError, Struck, run_of

Json = dict[str, Any]
Metrics = Mapping[str, float | None]


@dataclass
class _Trial:
    """starts: the nodes that a trial passes and where each begins, root first. ends: up to which step it goes along.

    linked: the step up to which it was said to be one with another.
    """

    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    linked: int = 0

    def grow(self, path: Mapping[str, int], steps: int) -> None:
        self.starts.update(path)
        self.steps = max(self.steps, steps)
        self.ends = dict(zip(self.starts, [*list(self.starts.values())[1:], self.steps], strict=True))

    def passes(self, node: str, step: int) -> bool:
        return step <= self.ends.get(node, -1)


class Runs:
    """Turns the events of a study into records: a point for each place, in the run of the first trial that passes it.

    `written` are the keys of the records that were written, up to now: no place is written twice. is_alone: whether
    the trials are those that began anew, since what the study had before was struck.
    """

    def __init__(self, study: str, written: Set[Key]) -> None:
        self._study, self._written = study, written
        self.is_alone = False
        self._trials: dict[int, _Trial] = {}
        self._passing: dict[str, set[int]] = {}
        self._measured: dict[str, dict[int, tuple[Metrics, float]]] = {}

    def take(self, event: Json) -> list[Record]:
        """What follows from the next event."""
        data = event["data"]
        if event["type"] == "Evaluated":
            return self.measured(data["node"], data["step"], data["metrics"], event["at"])
        if event["type"] in ("TrialAdded", "TrialExtended") and data["study"] == self._study:
            return self._grown(event)
        if event["type"] == "StudyIsolated" and data["study"] == self._study:
            return self._strike(data["reason"], event["at"])
        return []

    def _strike(self, reason: str, at: float) -> list[Record]:
        """Other trials bear the numbers from here on, and share nothing."""
        struck: list[Record] = [Struck(number, reason, at=at, is_alone=self.is_alone) for number in self._trials]
        self._trials, self._passing, self.is_alone = {}, {}, True
        return struck

    def measured(self, node: str, step: int, metrics: Metrics, at: float) -> list[Record]:
        """What follows from a measurement."""
        self._measured.setdefault(node, {})[step] = (metrics, at)
        return self._points(node, step)

    def node_at(self, trial: int, step: int) -> str | None:
        """The node of a trial's path that leads to a step; None where the trial does not go so far yet."""
        ends = self._trials[trial].ends if trial in self._trials else {}
        return next((name for name, end in ends.items() if step <= end), None)

    def is_first(self, trial: int, node: str, step: int) -> bool:
        """Whether what was logged at a place belongs in this trial's run, and is in no other's."""
        passing = [number for number in self._passing.get(node, ()) if self._trials[number].passes(node, step)]
        is_written = any(("logged", run_of(number, self.is_alone), step) in self._written for number in passing)
        return trial == min(passing, default=None) and not is_written

    def _points(self, node: str, step: int) -> list[Record]:
        passing = [number for number in self._passing.get(node, ()) if self._trials[number].passes(node, step)]
        if not passing or any(("point", run_of(number, self.is_alone), step) in self._written for number in passing):
            return []
        metrics, at = self._measured[node][step]
        return [Point(min(passing), step, metrics, at=at, is_alone=self.is_alone)]

    def _grown(self, event: Json) -> list[Record]:
        data, at = event["data"], event["at"]
        if data["path"] is None:
            raise SinkError(f"trial {data['trial']} was asked for by a version that did not record its nodes")
        number = int(data["trial"])
        is_new = number not in self._trials
        trial = self._trials.setdefault(number, _Trial())
        trial.grow(data["path"], data["steps"])
        for node in data["path"]:
            self._passing.setdefault(node, set()).add(number)
        began: list[Record] = [Began(number, data["hp"], at=at, is_alone=self.is_alone)] if is_new else []
        return [*began, *self._link(number, trial, at), *self._earlier(trial)]

    def _link(self, number: int, trial: _Trial, at: float) -> list[Record]:
        """With the trial that it shares most with, the first of them, where that is more than before."""
        end, other = self._nearest(number, trial)
        if end <= trial.linked:
            return []
        trial.linked = end
        return [Link(number, other, end, at=at, is_alone=self.is_alone)]

    def _nearest(self, number: int, trial: _Trial) -> tuple[int, int]:
        """The last step that is shared, and with whom: who shares a node shares all before it."""
        for node, end in reversed(trial.ends.items()):
            others = [(min(end, self._trials[n].ends[node]), -n) for n in self._passing[node] if n != number]
            if others:
                shared, other = max(others)
                return shared, -other
        return 0, 0

    def _earlier(self, trial: _Trial) -> list[Record]:
        """What was measured on a path before the trial came there."""
        places = ((node, step) for node in trial.starts for step in sorted(self._measured.get(node, ())))
        return [record for place in places for record in self._points(*place)]
