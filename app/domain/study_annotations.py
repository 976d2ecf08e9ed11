"""What a study is told: configurations to try, what other studies found; and notes, tags and attributes, on which no
decision depends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionWithdrawn:
    """No trial comes of a suggestion any more. suggestion: its number; the others keep theirs. by: "" for none."""

    study: StudyId
    suggestion: int
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsLearned:
    """A study's sampler begins with what another study found, as it was when this one was submitted.

    It is a copy, so that a proposal stays a function of one log: the other study may continue, or be deleted.

    source: the other study. results: of each trial, its number there as `trial`, its values in the space of this study
    as `sample`, and its `values` of this study's metric, as pairs of a step and a number. left_out: how many trials
    with results are not among them, by reason: `space`, if they are not in the space; `steps`, if their first result
    comes after more steps than this study trains for; `most`, if so many are better.
    """

    study: StudyId
    source: StudyId
    results: list[Json]
    left_out: dict[str, int]
    at: float


WHY_LEFT_OUT = {
    "space": "not in this study's space",
    "steps": "without a result after as few steps as this study trains for",
    "most": "not among the best, of which so many are taken",
}


def learned_text(learned: ResultsLearned) -> str:
    """How many trials of another study a study learnt from, and how many were left out, in a sentence."""
    total = len(learned.results) + sum(learned.left_out.values())
    rest = "".join(f"; {count} left out: {WHY_LEFT_OUT[reason]}" for reason, count in learned.left_out.items())
    return f"its sampler begins with {len(learned.results)} of {total} trials of {learned.source} with results{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAdded:
    """Somebody wrote something down about a study or, where one is named, a trial of it.

    by: the principal; "" for none.
    """

    study: StudyId
    trial: int | None
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCorrected:
    """A note has another text from here on. note: which one of its study, counted from 0. The log keeps both texts."""

    study: StudyId
    note: int
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLabelled:
    """tags: all that the study has from here on. attributes: the changed values, by name; None takes one away."""

    study: StudyId
    tags: list[str]
    attributes: dict[str, Any]
    at: float
    by: str = ""


Annotation = ConfigurationSuggested | SuggestionWithdrawn | ResultsLearned | NoteAdded | NoteCorrected | StudyLabelled


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNote:
    """A user's words on a study, or on a trial of it, to be read later."""

    study: StudyId
    text: str
    trial: int | None
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectNote:
    """Another text for a note. event: the position in its study of the event that added it."""

    study: StudyId
    event: int
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStudy:
    """Tags to add and to remove, and attributes to set; None removes one."""

    study: StudyId
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    at: float
    by: str = ""
