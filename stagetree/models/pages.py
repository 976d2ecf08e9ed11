"""What holds other answers: pages, and what only servers and the page have to do with. A client does not import it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json
from stagetree.models.events import Event, ReplayedBest
from stagetree.models.service import Slot, TrainerListed
from stagetree.models.studies import StudyListed
from stagetree.models.trials import LoggedPoint, Trial, TrialDetail


class StudyPage(Answer):
    """Studies, and where the next ones begin."""

    items: list[StudyListed]
    next_cursor: str | None


class TrialPage(Answer):
    """Trials, and where the next ones begin."""

    items: list[Trial]
    next_cursor: str | None


class TrialBatch(Answer):
    """Trials in the order they were asked for."""

    items: list[TrialDetail]


class Columns(Answer):
    """Many trials in little room."""

    count: int = Field(description="how many trials there are, which is how long each column is")
    columns: dict[str, list[Any]]


class Logged(Answer):
    """What a trainer logged while it trained, in order of steps: means since the point before."""

    items: list[LoggedPoint]


class EventPage(Answer):
    """A page may hold fewer than `limit` items, even none, and still have a next one."""

    items: list[Event]
    next_cursor: str | None


class Imagined(Answer):
    """What another tuner would have made of the results that exist."""

    study: str
    changes: Json
    trials: int
    requested: int
    unique: int
    saved: int = Field(description="steps that the study asked for and would not have")
    needed: int = Field(description="steps that it would have asked for, and nobody has trained")
    not_known: int = Field(description="results that would have decided, and nobody has measured")
    best: ReplayedBest | None = Field(description="as far as is known")


class Environment(Answer, is_open=True):
    """What trains on one kind of device. What could not be seen is null, or left out."""

    device: str
    python: str = ""
    torch: str | None = None
    driver: str | None = Field(default=None, description="of the GPUs")
    packages: dict[str, str] = Field(default={}, description="version by name")
    trainer: Json = Field(
        default={},
        description="of the trainer's file: its `commit`, whether it `is_changed`, the beginning of the `diff` to it "
        "with the `diff_sha256` of the whole, and the `untracked` files beside it",
    )


class Environments(Answer):
    """What a study's plan was trained with."""

    devices: list[Environment]


class SlotPage(Answer):
    """Slots, and where the next ones begin."""

    items: list[Slot]
    next_cursor: str | None


class TrainerPage(Answer):
    """Trainers, and where the next ones begin."""

    items: list[TrainerListed]
    next_cursor: str | None


class Health(Answer):
    """The server is there."""

    status: Literal["ok"]


class Readiness(Answer):
    """The service can work: each check says "ok"."""

    status: Literal["ok"]
    checks: dict[str, str]


class FieldError(Answer):
    """What is wrong with one field of a request."""

    field: str = Field(description="a path such as space.lr[1].gamma")
    problem: str


class Problem(Answer, is_open=True):
    """RFC 9457: what went wrong."""

    type: str
    title: str
    status: int
    detail: str = Field(description="one sentence for whoever asked")
    instance: str = Field(description="the path that was asked for")
    errors: list[FieldError] = Field(default=[], description="what is wrong with which field")
