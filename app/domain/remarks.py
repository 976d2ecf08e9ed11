"""What people write about a study: notes, tags and attributes, as commands and as events. No decision depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.terms import StudyId


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
    """tags: all that the study has from here on. attributes: those that change, by name; None takes one away."""

    study: StudyId
    tags: list[str]
    attributes: dict[str, Any]
    at: float
    by: str = ""


Remark = NoteAdded | NoteCorrected | StudyLabelled


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
