"""The service itself: slots, trainers, whether it is there, how it refuses, and its tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Word

ScopeWord = Literal["read", "submit", "operate", "admin"]


class Session(Answer):
    """The caller, and what it may do."""

    name: str = Field(description='of the token, or of the user behind a proxy; "" where no token was needed')
    scope: ScopeWord
    project: str | None = Field(description="the one whose studies are there; null for all")


class Token(Answer):
    """A token as it is listed: the secret itself is kept nowhere."""

    name: str
    scope: ScopeWord
    project: str | None
    created_at: float
    expires_at: float | None
    used_at: float | None = Field(description="to a minute")
    revoked_at: float | None


class TokenPage(Answer):
    """All tokens, by name."""

    items: list[Token]
    next_cursor: str | None


class NewToken(Answer):
    """A token that was just made; it is never shown again."""

    token: str
    name: str


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
