"""What pictures are drawn from: lists of equal length, one for each field."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.examples import NODE, Json, shown_as

TREE: Json = {
    "count": 1,
    "nodes": {
        "id": [NODE],
        "parent": [-1],
        "start": [0],
        "end": [40],
        "trained": [20],
        "trials": [2],
        "running": [[[20, 40]]],
        "checkpoints": [[20]],
        "steps": [[20]],
        "values": [[0.91]],
    },
    "forms": [{"bs": "64", "lr": "0.1"}],
    "trials": {"node": [0, 0], "steps": [20, 40], "state": ["completed", "active"]},
}
RUNG: Json = {"bracket": 0, "rung": 0, "steps": 20, "entered": 2, "trials": [1, 0], "values": [0.91, 0.9]}
TIMELINE: Json = {
    "count": 1,
    "at": 1789000009.0,
    "spans": {
        "slot": ["gpu0"],
        "node": [NODE],
        "start": [0],
        "end": [20],
        "own": [True],
        "begun": [4],
        "ended": [5],
        "begun_at": [1789000001.0],
        "ended_at": [1789000009.0],
        "outcome": ["done"],
        "proof": [None],
    },
    "marks": {"position": [6], "at": [1789000009.0], "kind": ["evaluated"], "span": [0], "step": [20]},
}
HISTORY: Json = {
    "position": 6,
    "at": 1789000009.0,
    "decisions": {
        "position": [7],
        "kind": ["stop"],
        "trial": [0],
        "steps": [None],
        "reason": [{"rung": 0, "rank": 2, "of": 2, "cut": 1}],
    },
    "best": [{"position": 6, "at": 1789000009.0, "slot_seconds": 8.0, "trial": 1, "step": 20, "value": 0.91}],
    "times": [[1, 1789000000.0], [6, 1789000009.0]],
}


class TreeNodes(BaseModel):
    """The nodes, parents first."""

    id: list[str]
    parent: list[int] = Field(description="the number of the node before it, -1 for none")
    start: list[int] = Field(description="the step at which it begins")
    end: list[int] = Field(description="the last step for which a trial of the study asks there")
    trained: list[int] = Field(description="the last of those that is trained")
    trials: list[int] = Field(description="how many trials of the study pass it")
    running: list[list[list[int]]] = Field(description="for each stage under way there: its first and last step")
    checkpoints: list[list[int]] = Field(description="the steps whose state is kept")
    steps: list[list[int]] = Field(description="where the metric was measured")
    values: list[list[float]] = Field(description="the metric there; of many, the lowest and highest of each part")


class TreeTrials(BaseModel):
    """The trials by number."""

    node: list[int] = Field(description="the number of its last node")
    steps: list[int]
    state: list[str]


class Tree(BaseModel):
    """What a study's trials share: its part of the search plan."""

    model_config = shown_as(TREE)
    count: int = Field(description="how many nodes there are")
    nodes: TreeNodes
    forms: list[dict[str, str]] = Field(
        description="what each hyper-parameter does from the node on, where it changes; empty for a large tree"
    )
    trials: TreeTrials


class RankedRung(BaseModel):
    """A rung with those that came to it."""

    bracket: int
    rung: int
    steps: int
    entered: int = Field(description="how many trials were sent there")
    trials: list[int] = Field(description="the best first, those that failed on the way last")
    values: list[float | None] = Field(description="what each had there, null for one that failed")
    promoted: list[int] = Field(description="the trials that went on")


class Rungs(BaseModel):
    model_config = shown_as({"items": [RUNG | {"promoted": [1]}]})
    items: list[RankedRung]


class Spans(BaseModel):
    """Stages on slots, in the order in which they began."""

    slot: list[str]
    node: list[str]
    start: list[int] = Field(description="the step it began after")
    end: list[int]
    own: list[bool] = Field(description="whether it is charged to this study, not to another on the plan")
    begun: list[int] = Field(description="the position of the event that began it")
    ended: list[int | None]
    begun_at: list[float]
    ended_at: list[float | None]
    outcome: list[str] = Field(description="running, done, failed, lost, undelivered, stopped or interrupted")
    proof: list[Literal["check", "handover", "whole", "audit"] | None] = Field(
        description="why steps were trained again, only to compare; null for training"
    )


class Marks(BaseModel):
    """What happened in the spans."""

    position: list[int]
    at: list[float]
    kind: list[Literal["evaluated", "kept"]]
    span: list[int] = Field(description="the number of the span")
    step: list[int]


class Timeline(BaseModel):
    """What each slot did over time."""

    model_config = shown_as(TIMELINE)
    count: int = Field(description="how many spans there are")
    at: float = Field(description="the time of the last event")
    spans: Spans
    marks: Marks


class Decisions(BaseModel):
    position: list[int]
    kind: list[str] = Field(description="start, promote, stop or cancel; of the study: pause, isolate, complete ...")
    trial: list[int | None]
    steps: list[int | None]
    reason: list[Json]


class BetterResult(BaseModel):
    """A result that was better than all before it."""

    position: int
    at: float
    slot_seconds: float = Field(description="what the study had spent on slots by then")
    trial: int
    step: int
    value: float


class History(BaseModel):
    """What was decided, how the best result came about, and when."""

    model_config = shown_as(HISTORY)
    position: int = Field(description="of the last event")
    at: float
    decisions: Decisions
    best: list[BetterResult]
    times: list[list[float]] = Field(description="position and time of some events, for an axis")


class Schedule(BaseModel):
    """A hyper-parameter of a trial over its steps."""

    name: str
    steps: list[int] = Field(description="some steps, the first and the last among them")
    values: list[Any] = Field(description="the value at each")


class Schedules(BaseModel):
    model_config = shown_as({"items": [{"name": "lr", "steps": [0, 19, 20, 39], "values": [0.1, 0.1, 0.01, 0.01]}]})
    items: list[Schedule]


class ImportanceOf(BaseModel):
    name: str = Field(description="a column of the trials, such as hp.lr.init")
    importance: float = Field(description="its share; all shares add up to 1")


class Importance(BaseModel):
    """Which hyper-parameters the result depends on."""

    model_config = shown_as(
        {"method": "PED-ANOVA", "trials": 32, "note": None, "items": [{"name": "hp.lr", "importance": 1.0}]}
    )
    method: str
    trials: int = Field(description="how many had a result")
    note: str | None = Field(description="why there is nothing to say")
    items: list[ImportanceOf]
