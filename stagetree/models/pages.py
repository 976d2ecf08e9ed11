"""Answers used only by servers and the page, which a client does not import: pages of lists, and data of pictures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word
from stagetree.models.service import Event, ReplayedBest, Slot, TrainerListed
from stagetree.models.studies import StudyListed
from stagetree.models.trials import LoggedPoint, Trial, TrialDetail


class StudyPage(Answer):
    """A page of studies, and the cursor of the next."""

    items: list[StudyListed]
    next_cursor: str | None


class TrialPage(Answer):
    """A page of trials, and the cursor of the next."""

    items: list[Trial]
    next_cursor: str | None


class TrialBatch(Answer):
    """Trials in the order of the request."""

    items: list[TrialDetail]


class Columns(Answer):
    """Many trials in a compact form."""

    count: int = Field(description="how many trials there are, which is how long each column is")
    columns: dict[str, list[Any]]


class Logged(Answer):
    """Values that a trainer logged, in order of steps: means since the previous point."""

    items: list[LoggedPoint]


class EventPage(Answer):
    """May hold fewer than `limit` items, even none, and still have a next page."""

    items: list[Event]
    next_cursor: str | None


class Imagined(Answer):
    """The outcome of another tuner on the existing results."""

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
    """The software on one kind of device. Unknown entries are null or omitted."""

    device: str
    python: str = ""
    torch: str | None = None
    driver: str | None = Field(default=None, description="of the GPUs")
    packages: dict[str, str] = Field(default={}, description="version by name")
    trainer: Json = Field(
        default={},
        description="`commit` of its file, `is_changed`, `diff` cut short, `diff_sha256`, `untracked` files beside",
    )


class Environments(Answer):
    """The environments in which a study's plan was trained."""

    devices: list[Environment]


class SlotPage(Answer):
    """A page of slots, and the cursor of the next."""

    items: list[Slot]
    next_cursor: str | None


class Demand(Answer):
    """How many slots could work now, after the scheduler has filled the free ones."""

    at: float = Field(description="when it looked, in Unix seconds by the database's clock")
    busy: int = Field(description="slots that have work, or are held for work that needs several")
    more: int = Field(description="further slots that would have work; one, for a tuner that decides trial by trial")
    wanted: int = Field(description="busy and more: how many slots there should be")
    idle: list[str] = Field(description="slots that have nothing to do, by name: those that may go")
    busy_by_kind: dict[str, int] = Field({}, description="the same as busy, by kind of device")
    more_by_kind: dict[str, int] = Field({}, description="the same as more, by the kind that is named; empty for any")


class TrainerPage(Answer):
    """A page of trainers, and the cursor of the next."""

    items: list[TrainerListed]
    next_cursor: str | None


class Health(Answer):
    """The server is running."""

    status: Literal["ok"]


class Readiness(Answer):
    """The service can work: each check is "ok"."""

    status: Literal["ok"]
    checks: dict[str, str]


class FieldError(Answer):
    """A problem with one field of a request."""

    field: str = Field(description="a path such as space.lr[1].gamma")
    problem: str


class Problem(Answer, is_open=True):
    """An RFC 9457 problem."""

    type: str
    title: str
    status: int
    detail: str = Field(description="one sentence for whoever asked")
    instance: str = Field(description="the path that was asked for")
    errors: list[FieldError] = Field(default=[], description="what is wrong with which field")


MarkWord = Literal["evaluated", "kept"]


class TreeNodes(Answer):
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
    means: list[list[list[float]]] = Field(description="of first repeats: step, mean and deviation of all repeats")


class TreeTrials(Answer):
    """The trials by number."""

    node: list[int] = Field(description="the number of its last node")
    steps: list[int]
    state: list[str]
    average_of: list[list[list[int]]] = Field(description="of an average, trial and step of each of its states")
    repeats: list[list[int]] = Field(description="the numbers of the last nodes of its other repeats")


class Tree(Answer):
    """The study's part of the search plan, with the trials that share it."""

    count: int = Field(description="how many nodes there are")
    nodes: TreeNodes
    forms: list[dict[str, str]] = Field(description="what changes at the node; empty for a large tree")
    trials: TreeTrials


class RankedRung(Answer):
    """A rung and the trials that reached it."""

    bracket: int
    rung: int
    steps: int
    entered: int = Field(description="how many trials were sent there")
    trials: list[int] = Field(description="the best first, those that failed on the way last")
    values: list[float | None] = Field(description="what each had there, null for one that failed")
    promoted: list[int] = Field(description="the trials that were promoted")


class Rungs(Answer):
    """The rungs of a study."""

    items: list[RankedRung]
    telling: int | None = Field(default=None, description="the furthest rung with 30 results, or a third of the most")


class Spans(Answer):
    """Stages on slots, in order of their start."""

    slot: list[str]
    members: list[list[str]] = Field(description="the slots that are lent to it")
    node: list[str]
    start: list[int] = Field(description="the step it began after")
    end: list[int]
    own: list[bool] = Field(description="whether it is charged to this study, not to another on the plan")
    begun: list[int] = Field(description="the position of the event that began it")
    ended: list[int | None]
    begun_at: list[float]
    ended_at: list[float | None]
    outcome: list[str] = Field(description="running, done, failed, lost, undelivered, stopped or interrupted")
    proof: list[Literal["check", "handover", "whole", "audit"] | None] = Field(description="null: not a comparison")


class Marks(Answer):
    """Events within the spans."""

    position: list[int]
    at: list[float]
    kind: list[Annotated[MarkWord | str, Word(MarkWord)]]
    span: list[int] = Field(description="the number of the span")
    step: list[int]


class Timeline(Answer):
    """The work of each slot over time."""

    count: int = Field(description="how many spans there are")
    at: float = Field(description="the time of the last event")
    spans: Spans
    marks: Marks


class Decisions(Answer):
    """All decisions, in order."""

    position: list[int]
    kind: list[str] = Field(description="start, promote, stop or cancel; of the study: pause, isolate, complete ...")
    trial: list[int | None]
    steps: list[int | None]
    reason: list[Json]


class BetterResult(Answer):
    """A result that was better than all before."""

    position: int
    at: float
    slot_seconds: float = Field(description="what the study had spent on slots by then")
    trial: int
    step: int
    value: float


class History(Answer):
    """The decisions, the improvements of the best result, and their times."""

    position: int = Field(description="of the last event")
    at: float
    decisions: Decisions
    best: list[BetterResult]
    times: list[list[float]] = Field(description="position and time of some events, for an axis")


class Schedule(Answer):
    """A hyper-parameter of a trial over its steps."""

    name: str
    steps: list[int] = Field(description="some steps, the first and the last among them")
    values: list[Any] = Field(description="the value at each")
    text: str = Field(description="the values in words: where it begins, turns, and ends, such as 0.1 → 0.01")


class Schedules(Answer):
    """The hyper-parameters of a trial."""

    items: list[Schedule]


class ImportanceOf(Answer):
    """The share of one hyper-parameter."""

    name: str = Field(description="a column of the trials, such as hp.lr.init")
    importance: float = Field(description="its share; all shares add up to 1")
    interval: list[float] = Field(description="between these two are nine of ten shares of trials drawn anew")


class Importance(Answer):
    """Which hyper-parameters the result depends on."""

    method: str
    rung: int | None = Field(description="by the results at this rung; null by the results at each trial's end")
    trials: int = Field(description="how many had a result")
    note: str | None = Field(description="why there is nothing to say")
    items: list[ImportanceOf]
