"""What a search is told from outside: configurations that somebody suggests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.terms import StudyId

Json = dict[str, Any]

SUGGESTION = "suggestion"
"""In the reason of a start: the number of the suggestion that it takes up, counted from 0 in its study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationSuggested:
    """Somebody suggests a configuration to a study's tuner, which tries it before it draws others.

    hp: by hyper-parameter, or by the place of a free value in the study's space; missing values are chosen later.
    by: the principal that suggests it; "" for none.
    """

    study: StudyId
    hp: Json
    at: float
    by: str = ""


def reason_of(suggested: ConfigurationSuggested, number: int) -> Json:
    """What the reason of its trial says."""
    return {SUGGESTION: number, **({"suggested_by": suggested.by} if suggested.by else {})}
