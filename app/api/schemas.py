"""What the answers look like, for OpenAPI. `app.api.views` makes them; a field that is not set is left out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stagetree.spec import TrialSpec

Json = dict[str, Any]

StudyState = Literal["running", "paused", "completed", "failed", "cancelled"]
TrialState = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"]

HP = {"lr": {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}, "bs": 64}
NODE = "5f0c3a1be2d94c7788a1c2d3e4f50617"

STUDY_FILE: Json = {
    "name": "digits-grid",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "seed": 0,
    "metric": "val_accuracy",
    "mode": "max",
    "eval_every": 10,
    "space": {"lr": [HP["lr"], 0.1], "bs": [64, {"family": "values", "values": [64, 128], "milestones": [24]}]},
    "tuner": {"kind": "grid", "max_steps": 40},
}
TRIAL: Json = {"trial": 3, "state": "completed", "steps": 40, "value": 0.9889, "hp": HP}
TRIAL_DETAIL: Json = {
    **TRIAL,
    "asked": [10, 40],
    "reason": {"by": "tuner"},
    "path": [NODE],
    "curve": [{"step": 10, "metrics": {"val_accuracy": 0.91}}],
}
LISTED: Json = {
    "study": "digits-grid-3f9c1a",
    "name": "digits-grid",
    "state": "running",
    "submitted_at": 1789000000.0,
    "plan": "plan-0f6a2c9d8b7e4a51",
}
UNDER_WAY: Json = {
    "slot": "gpu0",
    "study": "digits-grid-3f9c1a",
    "node": NODE,
    "start": 20,
    "end": 40,
    "step": 31,
}
STUDY: Json = {
    "study": "digits-grid-3f9c1a",
    "name": "digits-grid",
    "state": "running",
    "error": None,
    "metric": "val_accuracy",
    "mode": "max",
    "best": {"trial": 3, "value": 0.9889, "steps": 40, "hp": HP},
    "counts": {"waiting": 1, "running": 2, "completed": 1, "stopped": 0, "failed": 0, "cancelled": 0},
    "steps": {"requested": 160, "unique": 104, "executed": 71},
    "merge_rate": 1.538,
    "gpu_seconds": 7.2,
    "wall_seconds": 4.1,
    "submitted_at": 1789000000.0,
    "finished_at": None,
    "progress": {"running": [UNDER_WAY]},
    "spec": STUDY_FILE,
    "trials": [TRIAL],
}
EVENT: Json = {
    "position": 42,
    "version": 17,
    "type": "Evaluated",
    "data": {"node": NODE, "step": 40, "metrics": {"val_accuracy": 0.9889}},
    "at": 1789000004.2,
}
PREVIEW: Json = {
    "trials": 32,
    "requested": 1280,
    "unique": 608,
    "merge_rate": 2.105,
    "critical_path_steps": 40,
    "makespan_steps": 304,
    "slots": 2,
}
NODE_EXAMPLE: Json = {
    "id": NODE,
    "parent": None,
    "start": 0,
    "forms": {"bs": "64", "lr": "0.1"},
    "studies": ["digits-grid-3f9c1a"],
    "checkpoints": [20],
    "metrics": [{"step": 20, "metrics": {"val_accuracy": 0.95}}],
    "waiting": [],
    "running": [],
}
STAGE: Json = {"node": NODE, "start": 20, "end": 40, "parent": None, "ready": True}
SLOT: Json = {
    "name": "gpu0",
    "device": "cuda:0",
    "host": "node-1",
    "state": "busy",
    "note": None,
    "quarantined_until": None,
    "trainers": {"digits": "9c0ffee1d2b3a456"},
    "chain": "c1",
    "stage": {"node": NODE, "start": 20, "end": 40, "step": 31},
    "study": "digits-grid-3f9c1a",
    "seen_at": 1789000004.0,
}


def _example(value: Json) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


class Problem(BaseModel):
    """RFC 9457: what went wrong."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str = Field(description="one sentence for whoever asked")
    instance: str = Field(description="the path that was asked for")
    errors: list[FieldError] = Field(default=[], description="what is wrong with which field")


class FieldError(BaseModel):
    field: str = Field(description="a path such as space.lr[1].gamma")
    problem: str


class Best(BaseModel):
    """The best trial so far, by the study's mode, ties to the lower number."""

    trial: int
    value: float
    steps: int = Field(description="the step at which it had the value")
    hp: Json


class Trial(BaseModel):
    """A configuration that is asked to train for a number of steps."""

    model_config = _example(TRIAL)
    trial: int = Field(description="its number in the study, from 0 on")
    state: TrialState
    steps: int = Field(description="the most steps it was asked for")
    value: float | None = Field(description="the study's metric at the last step it was asked for that has one")
    hp: Json = Field(description="hyper-parameter to sequence")
    error: str = Field(default="", description="why it failed, in one line")


class Point(BaseModel):
    step: int
    metrics: dict[str, float | None] = Field(description="null for one that was not a finite number")


class Failure(BaseModel):
    kind: str = Field(description="exception, out_of_memory, poison, nan, metric or storage")
    step: int
    error: str = Field(description="the traceback, or a sentence")


class TrialDetail(Trial):
    """A trial with its curve."""

    model_config = _example(TRIAL_DETAIL)
    asked: list[int] = Field(description="the steps for which a result was asked, in order")
    reason: Json = Field(description="who wanted it, and why")
    path: list[str] = Field(description="its nodes in the search plan, root first")
    curve: list[Point]
    failure: Failure | None = None


class TrialPage(BaseModel):
    model_config = _example({"items": [TRIAL], "next_cursor": None})
    items: list[Trial]
    next_cursor: str | None


class TrialBatch(BaseModel):
    """Trials in the order they were asked for."""

    model_config = _example({"items": [TRIAL_DETAIL]})
    items: list[TrialDetail]


class Longer(BaseModel):
    """More steps of a trial there is."""

    model_config = ConfigDict(extra="forbid")
    trial: int = Field(ge=0, description="its number")
    steps: int = Field(ge=1, description="how many in all")


class Extension(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = Field(ge=1, description="how many in all")


class TrialsAsked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    trials: list[TrialSpec | Longer]


class Steps(BaseModel):
    requested: int = Field(description="what the trials asked for, each counted alone")
    unique: int = Field(description="distinct (beginning, step) pairs among them")
    executed: int = Field(description="steps that workers really ran, repeats included")


class UnderWay(BaseModel):
    """A stage that a slot is training now."""

    slot: str
    study: str = Field(description="the study that is charged for it")
    node: str
    start: int
    end: int
    step: int = Field(description="the last step done, as of the worker's last heartbeat")


class Progress(BaseModel):
    running: list[UnderWay]


class Study(BaseModel):
    """A study with its results so far."""

    model_config = _example(STUDY)
    study: str
    name: str
    state: StudyState
    error: str | None
    metric: str
    mode: str
    best: Best | None
    counts: dict[TrialState, int] = Field(description="trials by state")
    steps: Steps
    merge_rate: float | None = Field(description="requested / unique; null as long as nothing is asked for")
    gpu_seconds: float
    wall_seconds: float = Field(description="from submission to the end, or to now")
    submitted_at: float
    finished_at: float | None
    progress: Progress
    spec: Json = Field(default={}, description="the study file as it was submitted; left out with the trials")
    trials: list[Trial] = []


class Listed(BaseModel):
    """A study in the list."""

    model_config = _example(LISTED)
    study: str
    name: str
    state: StudyState
    submitted_at: float
    plan: str


class StudyPage(BaseModel):
    model_config = _example({"items": [LISTED], "next_cursor": "digits-grid-3f9c1a"})
    items: list[Listed]
    next_cursor: str | None


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

    model_config = _example(
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

    model_config = _example({"stages": [STAGE], "critical_path_steps": 20})
    stages: list[Stage]
    critical_path_steps: int


class Event(BaseModel):
    """A fact in its place: `position` in the whole log, `version` in the stream of its plan."""

    model_config = _example(EVENT)
    position: int
    version: int
    type: str
    data: Json
    at: float


class EventPage(BaseModel):
    """A page may hold fewer than `limit` items, even none, and still have a next one."""

    model_config = _example({"items": [EVENT], "next_cursor": "17"})
    items: list[Event]
    next_cursor: str | None


class Preview(BaseModel):
    """What a study would cost, counted in steps."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [PREVIEW]})
    trials: int
    requested: int
    unique: int
    merge_rate: float
    critical_path_steps: int = Field(description="no number of slots is faster")
    makespan_steps: int = Field(description="the time it takes on the slots asked about")


class SlotStage(BaseModel):
    node: str
    start: int
    end: int
    step: int


class Slot(BaseModel):
    """One GPU, or one CPU process."""

    name: str
    device: str
    host: str
    state: Literal["idle", "busy", "quarantined", "lost"] = Field(
        description="quarantined: it is given nothing for a while; lost: its worker was not heard of for a lease"
    )
    note: str | None = Field(description="what its worker waits for, or why it is in quarantine")
    quarantined_until: float | None
    trainers: dict[str, str] = Field(description="the version of each trainer that its worker has")
    chain: str | None
    stage: SlotStage | None
    study: str | None = Field(description="the study that is charged for the stage")
    seen_at: float = Field(description="when its worker was last heard of")


class SlotPage(BaseModel):
    model_config = _example({"items": [SLOT], "next_cursor": None})
    items: list[Slot]
    next_cursor: None


class Health(BaseModel):
    model_config = _example({"status": "ok"})
    status: Literal["ok"]


CHECKS = ("database", "schema", "broker", "store", "scheduler", "slots")


class Readiness(BaseModel):
    model_config = _example(
        {
            "status": "ok",
            "checks": {
                "database": "ok",
                "schema": "ok",
                "broker": "ok",
                "store": "ok",
                "scheduler": "ok",
                "slots": "ok",
            },
        }
    )
    status: Literal["ok"]
    checks: dict[str, str]


REPLAY: Json = {
    "study": "digits-asha-3f9c1a",
    "identical": True,
    "events": 214,
    "decisions": 41,
    "state": "completed",
    "best": {"trial": 3, "value": 0.97, "steps": 60},
    "steps": {"requested": 600, "unique": 412, "executed": 412},
    "plan": [{"node": NODE, "parent": None, "start": 0, "asked": 15, "checkpoints": [1, 15], "evaluated": [15]}],
    "rungs": [{"bracket": 0, "rung": 0, "trials": [{"trial": 3, "value": 0.91, "steps": 15, "promoted": True}]}],
    "history": [
        {
            "event": 12,
            "kind": "promote",
            "trial": 3,
            "rung": 1,
            "steps": 60,
            "reason": {"rung": 1, "rank": 1, "cut": 1, "of": 4, "loss": -0.91},
        }
    ],
}


class Replay(BaseModel):
    """Every decision of a study, derived again from its log."""

    model_config = _example(REPLAY)
    study: str
    identical: bool = Field(description="whether every recorded decision follows from what was on record before it")
    events: int = Field(description="how many events were folded")
    decisions: int = Field(description="how many decisions were derived")
    difference: Json | None = Field(default=None, description="the first decision that cannot be derived")
    rungs: list[Json] = Field(
        description="the rungs as they stand at the last event, each with its results, best first"
    )
    history: list[Json] = Field(description="every result and decision, in the order of the log")
