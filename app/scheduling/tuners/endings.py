"""What ends a study before its tuner does: a target that is reached, no patience left, or time that is up."""

from __future__ import annotations

import math
from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from stagetree.spec import StudySpec

Json = dict[str, Any]


class Endings:
    """A fold over the results of a study, of all its trials, whoever asked for them.

    A result is the metric at a step that a trial was asked for. Of equal ones the first is the best.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec, self._sign = spec, 1 if spec.mode == "max" else -1
        self._best: Json = {}
        self._since = 0  # results since the best

    @property
    def follow_results(self) -> bool:
        """Whether a result may end the study."""
        return self._spec.target is not None or self._spec.patience is not None

    @property
    def seconds(self) -> float:
        """When time is up, counted from the submission; infinite if never."""
        own = getattr(self._spec.tuner, "max_time", None)  # of a tuner that goes by time itself
        return min(self._spec.max_time or math.inf, own or math.inf)

    def observe(self, event: TrialEvent) -> None:
        """Take in what happened to a trial."""
        value = event.metrics.get(self._spec.metric)
        if event.kind != TrialEventKind.RESULT or value is None:
            return
        if self._best and self._sign * value <= self._sign * self._best["value"]:
            self._since += 1
        elif not self._has_reached_target():
            self._best, self._since = {"trial": event.trial, "steps": event.steps, "value": value}, 0

    def due(self, elapsed: float) -> Json | None:
        """Why the study ends now, `elapsed` seconds after its submission; None if it goes on."""
        spec = self._spec
        if self._has_reached_target():
            return {"by": "target", "target": spec.target, **self._best}
        if spec.patience is not None and self._since >= spec.patience:
            return {"by": "patience", "patience": spec.patience, **self._best}
        if spec.max_time is not None and elapsed >= spec.max_time:
            return {"by": "max_time", "max_time": spec.max_time}
        return None

    def _has_reached_target(self) -> bool:
        target = self._spec.target
        return target is not None and bool(self._best) and self._sign * (self._best["value"] - target) >= 0
