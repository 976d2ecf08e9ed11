"""What people write down about a study."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.examples import NOTE, shown_as
from app.domain.decide import MOST_CHARACTERS


class NoteText(BaseModel):
    """Something to write down."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")
    trial: int | None = Field(default=None, ge=0, description="the trial that it is about; null: the whole study")


class Note(BaseModel):
    """What somebody wrote down."""

    model_config = shown_as(NOTE)
    event: int = Field(description="the position of its event")
    time: float
    trial: int | None = Field(description="the trial that it is about; null: the whole study")
    text: str
