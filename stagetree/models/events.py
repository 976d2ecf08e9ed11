"""What is on record of a study, and the same derived again."""

from __future__ import annotations

from stagetree.models.answer import Answer, Json
from stagetree.models.studies import Steps


class Event(Answer):
    """A fact in its place: `position` in its study, of which the submission is 1, `version` in the log of the plan."""

    position: int
    version: int = 0
    type: str
    data: Json
    at: float = 0.0


class Replay(Answer):
    """Every decision of a study, derived again from its log, and how it stands at the last event replayed."""

    study: str
    identical: bool
    state: str = ""
    best: Json | None = None
    steps: Steps = Steps()
    plan: list[Json] = []
    events: int = 0
    decisions: int = 0
    difference: Json | None = None
    rungs: list[Json] = []
    history: list[Json] = []
