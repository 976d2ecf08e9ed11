"""What is on record of a study, and the same derived again."""

from __future__ import annotations

from pydantic import Field

from stagetree.models.answer import Answer, Json
from stagetree.models.studies import Steps, StudyState


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
