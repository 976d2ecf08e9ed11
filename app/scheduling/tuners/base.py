"""The interface of a tuner, and which class answers to which kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from app.domain.commands import Wish
from app.domain.search_plan import Study
from app.scheduling.tuners.fixed import Fixed
from stagetree.spec import StudySpec


class Tuner(Protocol):
    """What a study wants, from what has happened in it. Made once from the study file; remembers nothing after that."""

    def wishes(self, study: Study) -> Sequence[Wish]:
        """What is wanted next. A wish may be repeated: what is true already yields no event."""
        ...

    def is_done(self, study: Study) -> bool:
        """True when no result that may still come would make it want more."""
        ...


def tuner_of(spec: dict[str, Any]) -> Tuner:
    """The tuner that a study file asks for. Raises `stagetree.spec.SpecError`."""
    return Fixed(StudySpec.from_dict(spec))
