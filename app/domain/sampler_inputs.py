"""The inputs of a study's sampler beside its space: enqueued configurations, and results of other studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.terms import StudyId

Json = dict[str, Any]

SUGGESTION = "suggestion"
"""Key in the reason of a trial's start: the number of the suggestion that it takes up, from 0 in its study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationSuggested:
    """A configuration was enqueued. The tuner tries it before it samples others."""

    study: StudyId
    hp: Json
    """By hyper-parameter, or by the place of a free value in the study's space. The sampler chooses missing values."""
    at: float
    by: str = ""
    """The principal who suggested it; "" for none."""


def suggestion_reason(suggested: ConfigurationSuggested, number: int) -> Json:
    """The reason of the trial that takes up this suggestion."""
    return {SUGGESTION: number, **({"suggested_by": suggested.by} if suggested.by else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionWithdrawn:
    """A suggestion was withdrawn before a trial took it up. The others keep their numbers."""

    study: StudyId
    suggestion: int
    """Its number."""
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsLearned:
    """A study's sampler starts from the results that another study had when this one was submitted.

    The event holds a copy, so that a proposal depends on one log only: the other study may continue or be deleted.
    """

    study: StudyId
    source: StudyId
    """The other study."""
    results: list[Json]
    """For each trial, its number there (`trial`), its values in this study's space (`sample`), and `values` of this
    study's metric as pairs of a step and a number."""
    left_out: dict[str, int]
    """How many trials with results were not used, by a reason of `WHY_LEFT_OUT`."""
    at: float


WHY_LEFT_OUT = {
    "space": "not in this study's space",
    "steps": "without a result after as few steps as this study trains for",
    "most": "beyond the limit of the best results",
}


def learned_text(learned: ResultsLearned) -> str:
    """How many trials of another study the sampler starts from, and how many were left out, in a sentence."""
    total = len(learned.results) + sum(learned.left_out.values())
    rest = "".join(f"; {count} left out: {WHY_LEFT_OUT[reason]}" for reason, count in learned.left_out.items())
    return f"its sampler begins with {len(learned.results)} of {total} trials of {learned.source} with results{rest}"


SamplerInput = ConfigurationSuggested | SuggestionWithdrawn | ResultsLearned
