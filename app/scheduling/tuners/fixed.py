"""`grid`, `random` and `trials`: every configuration is known from the start, and each is trained to the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from app.domain.commands import Start
from app.domain.search_plan import Study
from stagetree.spec import StudySpec, TrialsTuner


class Fixed:
    """Wants all its trials at once, in the order of the study file, and nothing after that."""

    def __init__(self, spec: StudySpec) -> None:
        self._starts = tuple(
            Start(hp={name: sequence.to_json() for name, sequence in configuration.items()}, steps=steps)
            for configuration, steps in zip(spec.configurations(), _steps(spec), strict=False)
        )

    def wishes(self, study: Study) -> Sequence[Start]:
        return self._starts[study.proposed :]

    def is_done(self, study: Study) -> bool:
        return study.proposed >= len(self._starts)


def _steps(spec: StudySpec) -> Iterable[int]:
    """For how many steps each of the trials is trained."""
    if isinstance(spec.tuner, TrialsTuner):
        return (trial.steps for trial in spec.tuner.trials)
    return repeat(spec.tuner.max_steps)
