"""Answers about the service: slots, trainers, tokens, events and replays."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word
from stagetree.models.studies import Steps, StudyState

ScopeWord = Literal["read", "submit", "operate", "admin"]


class Session(Answer):
    """The caller and its permissions."""

    name: str = Field(description='the name of the token, or of the user behind a proxy; "" if no token was needed')
    scope: ScopeWord
    project: str | None = Field(description="the project that the caller sees; null for all")
    slot_seconds_left: float | None = Field(
        default=None, description="the rest of the token's slot time; null for a token without a limit"
    )


class Token(Answer):
    """A token in a list. The secret itself is not stored."""

    name: str
    scope: ScopeWord
    project: str | None
    created_at: float
    expires_at: float | None
    used_at: float | None = Field(description="when it was last used, to a minute")
    revoked_at: float | None
    max_slot_seconds: float | None = Field(
        default=None, description="the slot time that all its studies may take; null for no limit"
    )


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
    proof: str | None = Field(
        None, description="the kind of verification, if finished steps are trained again; null for training"
    )


class SlotLoan(Answer):
    """The chain of another slot that also trains on this slot's device."""

    slot: str
    chain: str
    study: str | None = None
    trial: int | None = Field(None, description="a trial that waits for the chain; others may wait as well")


class StageEstimates(Answer):
    """The errors of the estimates for a slot's stages, each made when its stage began."""

    error: float = Field(description="the median relative error of an estimate, over the stages")
    stages: int = Field(description="the number of stages")


class Slot(Answer, needs=("name", "state")):
    """One GPU, or one CPU process."""

    name: str
    device: str
    host: str
    state: SlotState = Field(
        description="lent: another slot also trains a trial on its device; quarantined: it gets no work for a "
        "while; lost: its worker sent no heartbeat for the length of a lease"
    )
    note: str | None = Field(description="the reason why its worker waits or is in quarantine")
    quarantined_until: float | None
    trainers: dict[str, str] = Field(description="the version of each of its worker's trainers")
    chain: str | None
    stage: SlotStage | None
    study: str | None = Field(description="the study that is charged for the stage")
    seen_at: float = Field(description="the time of its worker's last heartbeat")
    kind: str = Field("", description="the model of its device")
    lent_to: SlotLoan | None = Field(None, description="the chain that it is lent to")
    estimate_error: StageEstimates | None = Field(
        None, description="if `estimates` were requested, and at least four of its stages had one"
    )


class TrainerListed(Answer, needs=("name",)):
    """A registered trainer."""

    name: str
    version: str = Field(description="its declared version, or the hash of its file")


class Event(Answer, needs=("position", "type", "data")):
    """An event: `position` in its study, where the submission is 1, and `version` in the log of the plan."""

    position: int
    version: int
    type: str
    data: Json
    at: float
    by: str = Field(default="", description="the principal that gave the command; empty for none")


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
    asked: int = Field(description="the last step that the study requested there")
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

    event: int = Field(description="its position; below 1 for an event before the submission")
    problem: str
    recorded: Json | None
    derived: Json | None


class Replay(Answer, needs=("study", "identical")):
    """Every decision of a study, derived again from its log, and the state at the last replayed event."""

    study: str
    identical: bool = Field(description="whether every recorded decision follows from the events before it")
    events: int = Field(description="the number of folded events")
    decisions: int = Field(description="the number of derived decisions")
    difference: Difference | None = Field(default=None, description="the first decision that cannot be derived")
    state: StudyState | None = Field(
        default=None,
        description="the state at that event; this and the next fields are null if the log could not be followed",
    )
    best: ReplayedBest | None = None
    steps: Steps | None = None
    plan: list[ReplayedNode] = []
    rungs: list[ReplayedRung] = Field(default=[], description="the rungs, each with its results, best first")
    history: list[Json] = Field(description="every result and decision, in the order of the log")
