"""Tuners that decide nothing.

`grid`, `random` and `trials`: every configuration is known from the start, and each is trained to the end.
`external`: users add trials over the API and read their results; the tuner suggests nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from app.domain.commands import Start
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.tuning.tuners.base import Tuner
from stagetree.spec import StudySpec
from stagetree.spec.tuners import GridTuner, RandomTuner, TrialsTuner


class Fixed(Tuner):
    """Wants all its trials at once, in the order of the study file, and nothing after that."""

    eager = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self._started = 0
        self._starts = tuple(
            Start(hp={name: sequence.to_json() for name, sequence in configuration.items()}, steps=steps)
            for configuration, steps in zip(spec.configurations(), _steps(spec), strict=False)
        )

    def observe(self, event: TrialEvent) -> None:
        self._started += event.kind == TrialEventKind.START

    def suggest(self) -> Start | None:
        return self._starts[self._started] if self._started < len(self._starts) else None

    def suggest_many(self, most: int) -> tuple[Start, ...]:
        return self._starts[self._started : self._started + most]


def _steps(spec: StudySpec) -> Iterable[int]:
    """For how many steps each of the trials is trained."""
    if isinstance(spec.tuner, TrialsTuner):
        return (trial.steps for trial in spec.tuner.trials)
    assert isinstance(spec.tuner, GridTuner | RandomTuner)
    return repeat(spec.tuner.max_steps)


class External(Tuner):
    """Ask and tell from outside. The study stays open until it is closed on request (`CloseStudy`) or cancelled."""

    open_ended = True

    def observe(self, event: TrialEvent) -> None:
        """Nothing to learn: whoever adds the trials decides."""

    def suggest(self) -> None:
        return None
