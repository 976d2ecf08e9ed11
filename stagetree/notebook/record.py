"""What is known of a study and its trials, once it was read: the numbers behind data frames and plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stagetree.models import Event, Node, StudyAnswer, TrialDetail


@dataclass(slots=True)
class TrialHistory:
    """When a trial was added, and had its last result or was ended, in seconds since 1970; where it stands, and why."""

    added: float | None = None
    ended: float | None = None
    rung: int | None = None
    reason: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyHistory:
    """A study with all its trials, their curves, what happened to them, and the nodes of the plan they pass."""

    study: StudyAnswer
    trials: list[TrialDetail]
    events: list[Event]
    nodes: list[Node]

    def trial(self, number: int) -> TrialDetail:
        """One of the trials, by its number."""
        return self.trials[number]

    def curve(self, number: int, metric: str | None = None) -> dict[int, float | None]:
        """The values of a metric, by step; of the study's metric, where none is named."""
        name = metric or self.study.metric
        return {point.step: point.metrics.get(name) for point in self.trials[number].curve}

    def history(self, number: int) -> TrialHistory:
        """What happened to a trial."""
        return self._histories[number]

    @cached_property
    def _histories(self) -> dict[int, TrialHistory]:
        histories = {trial.trial: TrialHistory() for trial in self.trials}
        for event in self.events:
            if event.type == "StudyIsolated":  # what was before is struck: other trials bear the numbers
                histories = {trial.trial: TrialHistory() for trial in self.trials}
            if event.data.get("trial") in histories:
                _take(histories[event.data["trial"]], event)
        for number, history in histories.items():
            measured = [self._measured[place] for place in self._places(number) if place in self._measured]
            history.ended = max([*measured, *([history.ended] if history.ended else [])], default=None)
            if history.ended is None and self.trials[number].state == "completed":
                history.ended = history.added  # all was known before the study came
        return histories

    @cached_property
    def _measured(self) -> dict[tuple[str, int], float]:
        """When a node was measured at a step."""
        measured = (event for event in self.events if event.type == "Evaluated")
        return {(event.data["node"], event.data["step"]): event.at for event in measured}

    def _places(self, number: int) -> list[tuple[str, int]]:
        trial = self.trials[number]
        return [(node, point.step) for node in trial.path for point in trial.curve]


def _take(history: TrialHistory, event: Event) -> None:
    reason = event.data.get("reason") or {}
    if event.type == "TrialAdded":
        history.added = event.at
    if event.type in ("TrialStopped", "TrialCancelled"):
        history.ended = event.at
    if event.type in ("TrialAdded", "TrialExtended", "TrialStopped"):
        history.reason = reason
        history.rung = _rung(event.type, reason, history.rung)


def _rung(type: str, reason: Mapping[str, Any], before: int | None) -> int | None:
    """The rung that a trial trains for, or was stopped at; None for tuners without any."""
    if "rung" not in reason:
        return before
    return int(reason["rung"])
