"""What the server answers, typed: an editor completes `client.study(id).best.value`.

A field that a newer server adds is there too, by its name; one that an older server leaves out has its default. Answers
can be read like the JSON they come from, too: `study["best"]["value"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from stagetree.errors import StagetreeError

__all__ = [
    "Answer",
    "Best",
    "Cost",
    "Decision",
    "Event",
    "Failure",
    "Node",
    "Outcome",
    "Plan",
    "Point",
    "Preview",
    "Progress",
    "Replay",
    "RungStanding",
    "Slot",
    "SlotStage",
    "Stage",
    "StageTree",
    "Steps",
    "StepsDone",
    "StudyAnswer",
    "StudyListed",
    "TrainerListed",
    "Trial",
    "TrialDetail",
    "TrialsDone",
    "UnderWay",
]

Json = dict[str, Any]
StudyState = Literal["running", "paused", "completed", "failed", "cancelled"] | str
TrialState = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"] | str
SlotState = Literal["idle", "busy", "quarantined", "lost"] | str


class Answer(BaseModel):
    """A JSON object of the API."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Self:
        """The answer that JSON writes. Raises `StagetreeError` for what no stagetree server says."""
        try:
            return cls.model_validate(json)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            text = f"this is not a server that this client understands: {cls.__name__}.{place} is not as expected"
            raise StagetreeError(text) from None

    def to_json(self) -> Json:
        """The JSON object, as the server sent it."""
        return self.model_dump(mode="json", exclude_unset=True)

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other if isinstance(other, Mapping) else super().__eq__(other)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields or name in (self.model_extra or {})

    def get(self, name: str, default: Any = None) -> Any:
        """A field by its name, or `default` where there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Iterator[str]:
        """The names of the fields that the server sent, so that `{**answer}` is a dict of them."""
        return iter(self.model_fields_set)


# ------------------------------------------------------------------------------------------------------------- studies


class Outcome(Answer):
    """The study's metric after a step."""

    step: int
    value: float


class Best(Answer):
    """The best trial so far, by the study's mode, ties to the lower number."""

    trial: int
    value: float
    steps: int
    hp: Json = {}
    last: Outcome | None = None
    best: Outcome | None = None


class Steps(Answer):
    """Steps asked for, each trial counted alone; different ones among them; and those that workers really ran."""

    requested: int = 0
    unique: int = 0
    executed: int = 0


class Cost(Answer):
    """A waterfall, in steps: alone - stopped_early - unfinished - shared - known + repeated = run."""

    alone: int = 0
    stopped_early: int = 0
    unfinished: int = 0
    shared: int = 0
    known: int = 0
    repeated: int = 0
    run: int = 0
    saved: int = 0
    saved_share: float | None = None


class UnderWay(Answer):
    """A stage that a slot is training now: the steps (start, end] of a node, `step` of them done."""

    slot: str
    study: str = ""
    node: str
    start: int
    end: int
    step: int
    trials: list[int] = []
    trial_count: int = 0
    forms: dict[str, str] = {}


class TrialsDone(Answer):
    """Trials that wait for no result, and how many there will be; None where others say so."""

    done: int
    expected: int | None = None


class StepsDone(Answer):
    """Different steps that are trained, and how many there will be."""

    done: int
    expected: int


class RungStanding(Answer):
    """Where a tuner compares trials: how many were sent there, have a result there, failed, and went on."""

    bracket: int
    rung: int
    steps: int
    entered: int
    arrived: int
    failed: int
    promoted: int


class Decision(Answer):
    """What the tuner decided about a trial, and why."""

    kind: str
    trial: int
    steps: int
    reason: Json = {}


class Progress(Answer):
    """How far a study is, and what slots do for it."""

    trials: TrialsDone | None = None
    steps: StepsDone | None = None
    seconds_left: float | None = None
    rungs: list[RungStanding] = []
    last: Decision | None = None
    running: list[UnderWay] = []


class Trial(Answer):
    """A configuration that is asked to train for a number of steps.

    `value` is its `last` result or its `best` one, as the study says; `standing` says what its state means.
    """

    trial: int
    state: TrialState
    standing: str = ""
    steps: int
    trained: int = 0
    value: float | None = None
    last: Outcome | None = None
    best: Outcome | None = None
    rung: int | None = None
    rank: int | None = None
    hp: Json = {}
    error: str = ""


class StudyAnswer(Answer):
    """A study with its results so far; `spec` and `trials` only where they were asked for."""

    study: str
    name: str = ""
    state: StudyState
    error: str | None = None
    metric: str = ""
    mode: str = ""
    value: str = "last"
    tuner: str = ""
    best: Best | None = None
    counts: dict[str, int] = {}
    steps: Steps = Steps()
    cost: Cost = Cost()
    merge_rate: float | None = None
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    submitted_at: float = 0.0
    finished_at: float | None = None
    progress: Progress = Progress()
    spec: Json = {}
    trials: list[Trial] = []


class StudyListed(Answer):
    """A study in the list."""

    study: str
    name: str = ""
    state: StudyState
    submitted_at: float = 0.0
    plan: str = ""


# -------------------------------------------------------------------------------------------------------------- trials


class Point(Answer):
    """Metrics after a step; null for one that was not a finite number."""

    step: int
    metrics: dict[str, float | None]


class Failure(Answer):
    """What went wrong after a step: the traceback, or a sentence."""

    kind: str
    step: int
    error: str


class TrialDetail(Trial):
    """A trial with its curve, and its nodes in the search plan, root first."""

    asked: list[int] = []
    reason: Json = {}
    path: list[str] = []
    curve: list[Point] = []
    failure: Failure | None = None


# -------------------------------------------------------------------------------------------------- plan and stage tree


class Waiting(Answer):
    """Who waits for a result, at which step."""

    step: int
    study: str
    trial: int


class Running(Answer):
    """The steps (start, end] that a chain trains."""

    chain: str
    start: int
    end: int


class Node(Answer):
    """One set of sequences from a start step on, under a parent."""

    id: str
    parent: str | None = None
    start: int
    forms: dict[str, str] = {}
    studies: list[str] = []
    checkpoints: list[int] = []
    metrics: list[Point] = []
    waiting: list[Waiting] = []
    running: list[Running] = []


class Plan(Answer):
    """The search plan: all trials of all studies on one trainer, version, arguments and seed."""

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    studies: list[str]
    nodes: list[Node]


class Place(Answer):
    """A step of a node."""

    node: str
    step: int


class Stage(Answer):
    """Train a node from one step to another; start equals end where only an evaluation is missing."""

    node: str
    start: int
    end: int
    parent: Place | None = None
    ready: bool = False


class StageTree(Answer):
    """The stages that are outstanding for the study, parents first."""

    stages: list[Stage]
    critical_path_steps: int


# --------------------------------------------------------------------------------------------------------------- others


class Event(Answer):
    """A fact in its place: `position` in the whole log, `version` in the stream of its plan."""

    position: int
    version: int = 0
    type: str
    data: Json
    at: float = 0.0


class Preview(Answer):
    """What a study would cost, counted in steps; `advice` says what would make it cost less."""

    trials: int
    requested: int
    unique: int
    merge_rate: float
    critical_path_steps: int
    makespan_steps: int
    slots: int = 1
    advice: list[str] = []


class TrainerListed(Answer):
    """A trainer that is registered."""

    name: str
    version: str = ""


class SlotStage(Answer):
    """What a slot trains."""

    node: str
    start: int
    end: int
    step: int


class Slot(Answer):
    """One GPU, or one CPU process."""

    name: str
    device: str = ""
    host: str = ""
    state: SlotState
    note: str | None = None
    quarantined_until: float | None = None
    trainers: dict[str, str] = {}
    chain: str | None = None
    stage: SlotStage | None = None
    study: str | None = None
    seen_at: float = 0.0


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
