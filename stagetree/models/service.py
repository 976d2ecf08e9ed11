"""The service itself: slots, trainers, whether it is there, how it refuses, its tokens; and what is on its record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word
from stagetree.models.studies import Steps, StudyState

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


SlotWord = Literal["idle", "busy", "lent", "quarantined", "lost"]
SlotState = Annotated[SlotWord | str, Word(SlotWord)]


class SlotStage(Answer):
    """What a slot trains."""

    node: str
    start: int
    end: int
    step: int


class SlotLoan(Answer):
    """The chain of another slot that trains on a slot's device, too."""

    slot: str
    chain: str
    study: str | None = None
    trial: int | None = Field(None, description="a trial that waits for what the chain trains; others may as well")


class StageEstimates(Answer):
    """How far the estimates of a slot's stages were off, each made when its stage began."""

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
    """A trainer that is registered."""

    name: str
    version: str = Field(description="what it says of itself, or the hash of its file")


class Event(Answer, needs=("position", "type", "data")):
    """A fact in its place: `position` in its study, of which the submission is 1, `version` in the log of the plan."""

    position: int
    version: int
    type: str
    data: Json
    at: float
    by: str = Field(default="", description="the principal whose command it comes from, if there is one")


class ReplayedBest(Answer):
    """The best trial by then."""

    trial: int
    value: float
    steps: int


class ReplayedNode(Answer):
    """A node that the study passes, and how far it was by then."""

    node: str
    parent: str | None
    start: int
    asked: int = Field(description="the last step that the study asked for there")
    checkpoints: list[int]
    evaluated: list[int]


class RungResult(Answer):
    """What a trial had at a rung."""

    trial: int
    value: float
    steps: int
    promoted: bool


class ReplayedRung(Answer):
    """A rung by then."""

    bracket: int
    rung: int
    trials: list[RungResult] = Field(description="best first")


class Difference(Answer):
    """The first decision that does not follow from what was on record before it."""

    event: int = Field(description="its position; below 1: it was there before the study was submitted")
    problem: str
    recorded: Json | None
    derived: Json | None


class Replay(Answer, needs=("study", "identical")):
    """Every decision of a study, derived again from its log, and how it stands at the last event replayed."""

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
