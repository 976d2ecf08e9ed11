"""What bodies write about a study: notes, tags and attributes. As `app.api.bodies`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.api.bodies import Json, is_count, typed, valid
from app.domain.decide import MOST_CHARACTERS
from stagetree.spec import Problem as SpecProblem
from stagetree.spec import SpecError, shown


class NoteText(BaseModel):
    """Something to write down."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")
    trial: int | None = Field(default=None, ge=0, description="the trial that it is about; null: the whole study")


class Correction(BaseModel):
    """Another text for a note."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")


class LabelsWanted(BaseModel):
    """Tags to add and to remove, and attributes to set."""

    model_config = ConfigDict(extra="forbid", strict=True)
    add: list[str] = Field(default=[], description="words without a comma or =")
    remove: list[str] = []
    attributes: Json = Field(default={}, description="values by name; null takes one away")


def note_of(body: Any) -> tuple[str, int | None]:
    """The text of a note, and the trial that it is about. Raises `SpecError`."""
    given = body if isinstance(body, dict) else {}
    problems = [SpecProblem(name, "is no field of a note: there are text, trial") for name in given.keys() - NOTE]
    if not isinstance(given.get("text"), str):
        problems.append(SpecProblem("text", f"must be the text of the note, got {shown(given.get('text'))}"))
    if (trial := given.get("trial")) is not None and not is_count(trial, 0):
        problems.append(SpecProblem("trial", f"must be the number of a trial, from 0 on, or null, got {shown(trial)}"))
    if problems:
        raise SpecError(problems)
    return given["text"], trial


def correction_of(body: Any) -> str:
    """The new text of a note. Raises `SpecError`."""
    return valid(Correction, body).text


def labels_of(body: Any) -> Json:
    """The tags and attributes that a body changes. Raises `SpecError`."""
    return dict(valid(LabelsWanted, body))


NOTE = {"text": "diverges after the warm-up", "trial": 3}
NoteBody = typed(NoteText, NOTE)
CorrectionBody = typed(Correction, {"text": "diverges after step 40"})
LabelsBody = typed(LabelsWanted, {"add": ["paper"], "remove": ["draft"], "attributes": {"dataset": "v3"}})
