"""The service itself: slots, trainers, whether it is there, and how it refuses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Word

SlotWord = Literal["idle", "busy", "quarantined", "lost"]
SlotState = Annotated[SlotWord | str, Word(SlotWord)]


class SlotStage(Answer):
    """What a slot trains."""

    node: str
    start: int
    end: int
    step: int


class Slot(Answer, needs=("name", "state")):
    """One GPU, or one CPU process."""

    name: str
    device: str
    host: str
    state: SlotState = Field(
        description="quarantined: it is given nothing for a while; lost: its worker was not heard of for a lease"
    )
    note: str | None = Field(description="what its worker waits for, or why it is in quarantine")
    quarantined_until: float | None
    trainers: dict[str, str] = Field(description="the version of each trainer that its worker has")
    chain: str | None
    stage: SlotStage | None
    study: str | None = Field(description="the study that is charged for the stage")
    seen_at: float = Field(description="when its worker was last heard of")


class TrainerListed(Answer, needs=("name",)):
    """A trainer that is registered."""

    name: str
    version: str = Field(description="what it says of itself, or the hash of its file")
