"""What the service has to train with: trainers and slots."""

from __future__ import annotations

from typing import Literal

from stagetree.models.answer import Answer


class TrainerListed(Answer):
    """A trainer that is registered."""

    name: str
    version: str = ""


SlotState = Literal["idle", "busy", "quarantined", "lost"] | str


class SlotStage(Answer):
    """What a slot trains."""

    node: str
    start: int
    end: int
    step: int


class Slot(Answer):
    """One GPU, or one CPU process."""

    name: str
    device: str = ""
    host: str = ""
    state: SlotState
    note: str | None = None
    quarantined_until: float | None = None
    trainers: dict[str, str] = {}
    chain: str | None = None
    stage: SlotStage | None = None
    study: str | None = None
    seen_at: float = 0.0
