"""Answers about the service: slots, trainers, tokens, events and replays."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word
from stagetree.models.studies import Steps, StudyState

ScopeWord = Literal["read", "submit", "operate", "admin"]


class Session(Answer):
    """The caller and its permissions."""

    name: str = Field(description='of the token, or of the user behind a proxy; "" where no token was needed')
    scope: ScopeWord
    project: str | None = Field(description="the one whose studies are there; null for all")


class Token(Answer):
    """A token in a list. The secret itself is not stored."""

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
    """A new token. It is never shown again."""

    token: str
    name: str


SlotWord = Literal["idle", "busy", "lent", "quarantined", "lost"]
SlotState = Annotated[SlotWord | str, Word(SlotWord)]


class SlotStage(Answer):
    """The current stage of a slot."""

    node: str
    start: int
    end: int
    step: int


class SlotLoan(Answer):
    """The chain of another slot that also trains on this slot's device."""

    slot: str
    chain: str
    study: str | None = None
    trial: int | None = Field(None, description="a trial that waits for what the chain trains; others may as well")


class StageEstimates(Answer):
    """The errors of the estimates for a slot's stages, each made when its stage began."""

    error: float = Field(description="the part of itself by which an estimate was off, the median over the stages")
    stages: int = Field(description="how many stages")


class Slot(Answer, needs=("name", "state")):
    """One GPU, or one CPU process."""

    name: str
    device: str
    host: str
    state: SlotState = Field(
        description="lent: another slot trains a trial on its device, too; quarantined: it is given nothing for a "
        "while; lost: its worker was not heard of for a lease"
    )
    note: str | None = Field(description="what its worker waits for, or why it is in quarantine")
    quarantined_until: float | None
    trainers: dict[str, str] = Field(description="the version of each trainer that its worker has")
    chain: str | None
    stage: SlotStage | None
    study: str | None = Field(description="the study that is charged for the stage")
    seen_at: float = Field(description="when its worker was last heard of")
    kind: str = Field("", description="the model of its device")
    lent_to: SlotLoan | None = Field(None, description="whom it is lent to")
    estimate_error: StageEstimates | None = Field(
        None, description="where `estimates` were asked for, and at least four stages that it trained had one"
    )


class TrainerListed(Answer, needs=("name",)):
    """A registered trainer."""

    name: str
    version: str = Field(description="what it says of itself, or the hash of its file")


class Event(Answer, needs=("position", "type", "data")):
    """An event: `position` in its study, where the submission is 1, and `version` in the log of the plan."""

    position: int
    version: int
    type: str
    data: Json
    at: float
    by: str = Field(default="", description="the principal whose command it comes from, if there is one")


class ReplayedBest(Answer):
    """The best trial at that event."""

    trial: int
    value: float
    steps: int


class ReplayedNode(Answer):
    """A node of the study and its progress at that event."""

    node: str
    parent: str | None
    start: int
    asked: int = Field(description="the last step that the study asked for there")
    checkpoints: list[int]
    evaluated: list[int]


class RungResult(Answer):
    """The result of a trial at a rung."""

    trial: int
    value: float
    steps: int
    promoted: bool


class ReplayedRung(Answer):
    """A rung at that event."""

    bracket: int
    rung: int
    trials: list[RungResult] = Field(description="best first")


class Difference(Answer):
    """The first decision that does not follow from the events before it."""

    event: int = Field(description="its position; below 1: it was there before the study was submitted")
    problem: str
    recorded: Json | None
    derived: Json | None


class Replay(Answer, needs=("study", "identical")):
    """Every decision of a study, derived again from its log, and the state at the last replayed event."""

    study: str
    identical: bool = Field(description="whether every recorded decision follows from what was on record before it")
    events: int = Field(description="how many events were folded")
    decisions: int = Field(description="how many decisions were derived")
    difference: Difference | None = Field(default=None, description="the first decision that cannot be derived")
    state: StudyState | None = Field(default=None, description="this and what follows: where the log could be followed")
    best: ReplayedBest | None = None
    steps: Steps | None = None
    plan: list[ReplayedNode] = []
    rungs: list[ReplayedRung] = Field(default=[], description="the rungs, each with its results, best first")
    history: list[Json] = Field(description="every result and decision, in the order of the log")
