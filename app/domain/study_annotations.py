"""Notes, tags and attributes of a study, as events and as commands. No decision depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.terms import StudyId


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAdded:
    """A user wrote a note on a study, or on one of its trials."""

    study: StudyId
    trial: int | None
    """None for a note on the study."""
    text: str
    at: float
    by: str = ""
    """The principal; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCorrected:
    """The text of a note was replaced. The log keeps both texts."""

    study: StudyId
    note: int
    """Its number in the study, from 0."""
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLabelled:
    study: StudyId
    tags: list[str]
    """All tags that the study has now."""
    attributes: dict[str, Any]
    """The changed values by name; None removes one."""
    at: float
    by: str = ""


Annotation = NoteAdded | NoteCorrected | StudyLabelled


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNote:
    """Add a note to a study, or to one of its trials."""

    study: StudyId
    text: str
    trial: int | None
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectNote:
    """Replace the text of a note."""

    study: StudyId
    event: int
    """The position in its study of the event that added the note."""
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStudy:
    """Add and remove tags, and set attributes; None removes one."""

    study: StudyId
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    at: float
    by: str = ""
