"""What lies behind a study: plan, stage tree, events, replay."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Steps
from app.api.schemas.examples import EVENT, NODE_EXAMPLE, REPLAY, STAGE, Json, StudyState, shown_as
from app.api.schemas.trials import Point

IMAGINED: Json = {
    "study": "digits-asha-3f9c1a",
    "changes": {"tuner.reduction_factor": 2},
    "trials": 40,
    "requested": 480,
    "unique": 390,
    "saved": 8,
    "needed": 12,
    "not_known": 3,
    "best": {"trial": 3, "value": 0.97, "steps": 60},
}


class Waiting(BaseModel):
    step: int
    study: str
    trial: int


class Running(BaseModel):
    chain: str
    start: int
    end: int


class Node(BaseModel):
    """One set of sequences from a start step on, under a parent."""

    id: str
    parent: str | None
    start: int
    forms: dict[str, str] = Field(description="what each hyper-parameter does here, for people")
    studies: list[str] = Field(description="the studies that have a trial here")
    checkpoints: list[int] = Field(description="the steps at which the state is kept")
    metrics: list[Point]
    waiting: list[Waiting] = Field(description="who waits for a result, at which step")
    running: list[Running] = Field(description="the steps (start, end] that are being trained")


class Plan(BaseModel):
    """The search plan: all trials of all studies on one trainer, version, arguments and seed."""

    model_config = shown_as(
        {
            "plan": "plan-0f6a2c9d8b7e4a51",
            "trainer": "digits",
            "trainer_version": "1",
            "trainer_args": {"width": 32},
            "seed": 0,
            "studies": ["digits-grid-3f9c1a"],
            "nodes": [NODE_EXAMPLE],
        }
    )
    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    studies: list[str]
    nodes: list[Node]


class Place(BaseModel):
    node: str
    step: int


class Stage(BaseModel):
    """Train a node from one step to another; start equals end where only an evaluation is missing."""

    node: str
    start: int
    end: int
    parent: Place | None = Field(description="the end of the stage before, null where it begins at a checkpoint")
    ready: bool = Field(description="it can begin now")


class StageTree(BaseModel):
    """The stages that are outstanding for the study, parents first."""

    model_config = shown_as({"stages": [STAGE], "critical_path_steps": 20})
    stages: list[Stage]
    critical_path_steps: int


class Event(BaseModel):
    """A fact in its place: `position` in its study, of which the submission is 1, `version` in the log of the plan."""

    model_config = shown_as(EVENT)
    position: int
    version: int
    type: str
    data: Json
    at: float


class EventPage(BaseModel):
    """A page may hold fewer than `limit` items, even none, and still have a next one."""

    model_config = shown_as({"items": [EVENT], "next_cursor": "17"})
    items: list[Event]
    next_cursor: str | None


class ReplayedBest(BaseModel):
    trial: int
    value: float
    steps: int


class ReplayedNode(BaseModel):
    """A node that the study passes, and how far it was by then."""

    node: str
    parent: str | None
    start: int
    asked: int = Field(description="the last step that the study asked for there")
    checkpoints: list[int]
    evaluated: list[int]


class RungResult(BaseModel):
    trial: int
    value: float
    steps: int
    promoted: bool


class ReplayedRung(BaseModel):
    bracket: int
    rung: int
    trials: list[RungResult] = Field(description="best first")


class Difference(BaseModel):
    event: int = Field(description="its position; below 1: it was there before the study was submitted")
    problem: str
    recorded: Json | None
    derived: Json | None


class Changes(BaseModel):
    """Another study file, as what is different in it."""

    model_config = ConfigDict(extra="forbid")
    changes: Json = Field(description="new values by dotted path: tuner.reduction_factor")


class Imagined(BaseModel):
    """What another tuner would have made of the results that exist."""

    model_config = shown_as(IMAGINED)
    study: str
    changes: Json
    trials: int
    requested: int
    unique: int
    saved: int = Field(description="steps that the study asked for and would not have")
    needed: int = Field(description="steps that it would have asked for, and nobody has trained")
    not_known: int = Field(description="results that would have decided, and nobody has measured")
    best: ReplayedBest | None = Field(description="as far as is known")


class Replay(BaseModel):
    """Every decision of a study, derived again from its log, and how it stands at the last event replayed."""

    model_config = shown_as(REPLAY)
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


class Environment(BaseModel):
    """What trains on one kind of device. What could not be seen is null, or left out."""

    model_config = ConfigDict(extra="allow")
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


class Environments(BaseModel):
    """What a study's plan was trained with."""

    model_config = shown_as({"devices": [{"device": "cpu", "python": "3.11.7", "torch": "2.13.0", "packages": {}}]})
    devices: list[Environment]
