"""Whose run a measurement belongs in: a fold of a study's events, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from stagetree.sinks.base import Began, Key, Link, Point, Record, SinkError

Json = dict[str, Any]
Metrics = Mapping[str, float | None]


@dataclass
class _Trial:
    """The nodes that a trial passes and where each begins, root first; up to which step it is linked with another."""

    path: dict[str, int]
    steps: int
    linked: int = 0

    def segments(self) -> list[tuple[str, int]]:
        """The nodes, each with the step up to which the trial goes along."""
        ends = [*list(self.path.values())[1:], self.steps]
        return list(zip(self.path, ends, strict=True))

    def passes(self, node: str, step: int) -> bool:
        return any(name == node and step <= end for name, end in self.segments())

    def shared(self, other: _Trial) -> int:
        """The step up to which both are one."""
        end = 0
        for (node, mine), (others_node, others) in zip(self.segments(), other.segments(), strict=False):
            if node != others_node:
                break
            end = min(mine, others)
            if mine != others:
                break
        return end


class Runs:
    """Turns the events of a study into records: a point for each place, in the run of the first trial that passes it.

    `written` are the keys of the records that were written, up to now: no place is written twice.
    """

    def __init__(self, study: str, written: Set[Key]) -> None:
        self._study, self._written = study, written
        self._trials: dict[int, _Trial] = {}
        self._passing: dict[str, set[int]] = {}
        self._measured: dict[str, dict[int, tuple[Metrics, float]]] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._trials)

    def take(self, event: Json) -> list[Record]:
        """What follows from the next event."""
        data = event["data"]
        if event["type"] == "Evaluated":
            return self.measured(data["node"], data["step"], data["metrics"], event["at"])
        if event["type"] in ("TrialAdded", "TrialExtended") and data["study"] == self._study:
            return self._grown(event)
        return []

    def measured(self, node: str, step: int, metrics: Metrics, at: float) -> list[Record]:
        """What follows from a measurement."""
        self._measured.setdefault(node, {})[step] = (metrics, at)
        return self._points(node, step)

    def node_at(self, trial: int, step: int) -> str | None:
        """The node of a trial's path that leads to a step; None where the trial does not go so far yet."""
        return next((name for name, end in self._trials[trial].segments() if step <= end), None)

    def is_first(self, trial: int, node: str, step: int) -> bool:
        """Whether what was logged at a place belongs in this trial's run, and is in no other's."""
        passing = [number for number in self._passing.get(node, ()) if self._trials[number].passes(node, step)]
        return trial == min(passing) and not any(("logged", number, step) in self._written for number in passing)

    def _points(self, node: str, step: int) -> list[Record]:
        passing = [number for number in self._passing.get(node, ()) if self._trials[number].passes(node, step)]
        if not passing or any(("point", number, step) in self._written for number in passing):
            return []
        return [Point(min(passing), step, *self._measured[node][step])]

    def _grown(self, event: Json) -> list[Record]:
        data, at = event["data"], event["at"]
        if data["path"] is None:
            raise SinkError(f"trial {data['trial']} was asked for by a version that did not record its nodes")
        number = int(data["trial"])
        is_new = number not in self._trials
        trial = self._trials.setdefault(number, _Trial({}, 0))
        trial.path |= data["path"]
        trial.steps = max(trial.steps, data["steps"])
        for node in data["path"]:
            self._passing.setdefault(node, set()).add(number)
        began: list[Record] = [Began(number, data["hp"], at)] if is_new else []
        return [*began, *self._link(number, trial, at), *self._earlier(trial)]

    def _link(self, number: int, trial: _Trial, at: float) -> list[Record]:
        """With the trial that it shares most with, the first of them, where that is more than before."""
        others = [(other.shared(trial), -n) for n, other in self._trials.items() if n != number]
        end, other = max(others, default=(0, 0))
        if end <= trial.linked:
            return []
        trial.linked = end
        return [Link(number, -other, end, at)]

    def _earlier(self, trial: _Trial) -> list[Record]:
        """What was measured on a path before the trial came there."""
        places = ((node, step) for node in trial.path for step in sorted(self._measured.get(node, ())))
        return [record for place in places for record in self._points(*place)]
