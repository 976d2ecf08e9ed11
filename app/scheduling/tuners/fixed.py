"""`grid`, `random` and `trials`: every configuration is known from the start, and each is trained to the end."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.commands import Start
from app.domain.search_plan import Study
from stagetree.spec import StudySpec


class Fixed:
    """Wants all its trials at once, in the order of the study file, and nothing after that."""

    def __init__(self, spec: StudySpec) -> None:
        self._starts = tuple(Start(hp=trial.hp, steps=trial.steps) for trial in spec.fixed_trials())

    def wishes(self, study: Study) -> Sequence[Start]:
        return self._starts[study.proposed :]

    def is_done(self, study: Study) -> bool:
        return study.proposed >= len(self._starts)
