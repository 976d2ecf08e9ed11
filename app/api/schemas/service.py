"""The service itself: slots and trainers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from app.api.schemas.examples import SLOT, shown_as


class SlotStage(BaseModel):
    node: str
    start: int
    end: int
    step: int


class Slot(BaseModel):
    """One GPU, or one CPU process."""

    name: str
    device: str
    host: str
    state: Literal["idle", "busy", "quarantined", "lost"] = Field(
        description="quarantined: it is given nothing for a while; lost: its worker was not heard of for a lease"
    )
    note: str | None = Field(description="what its worker waits for, or why it is in quarantine")
    quarantined_until: float | None
    trainers: dict[str, str] = Field(description="the version of each trainer that its worker has")
    chain: str | None
    stage: SlotStage | None
    study: str | None = Field(description="the study that is charged for the stage")
    seen_at: float = Field(description="when its worker was last heard of")


class SlotPage(BaseModel):
    model_config = shown_as({"items": [SLOT], "next_cursor": None})
    items: list[Slot]
    next_cursor: str | None


class TrainerListed(BaseModel):
    """A trainer that is registered."""

    name: str
    version: str = Field(description="what it says of itself, or the hash of its file")


class TrainerPage(BaseModel):
    model_config = shown_as({"items": [{"name": "digits", "version": "1"}], "next_cursor": None})
    items: list[TrainerListed]
    next_cursor: str | None
