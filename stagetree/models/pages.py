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

    count: int = Field(description="the number of trials, and the length of each column")
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
    saved: int = Field(description="requested steps that the other tuner would not have requested")
    needed: int = Field(description="steps that the other tuner would have requested and that are not trained")
    not_known: int = Field(description="results that its decisions would need and that are not measured")
    best: ReplayedBest | None = Field(description="the best trial among the known results")


class Environment(Answer, is_open=True):
    """The software on one kind of device. Unknown entries are null or omitted."""

    device: str
    python: str = ""
    torch: str | None = None
    driver: str | None = Field(default=None, description="the version of the GPU driver")
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
    more: int = Field(description="further slots that would have work; one for a tuner that decides trial by trial")
    wanted: int = Field(description="busy + more: the number of slots that there should be")
    idle: list[str] = Field(description="the names of idle slots, which may be removed")
    busy_by_kind: dict[str, int] = Field({}, description="busy, by kind of device")
    more_by_kind: dict[str, int] = Field({}, description="more, by the requested kind of device;  for any")


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
    detail: str = Field(description="one sentence for the caller")
    instance: str = Field(description="the requested path")
    errors: list[FieldError] = Field(default=[], description="the problem of each field")


MarkWord = Literal["evaluated", "kept"]


class TreeNodes(Answer):
    """The nodes, parents first."""

    id: list[str]
    parent: list[int] = Field(description="the index of the parent, -1 for none")
    start: list[int] = Field(description="the step at which it begins")
    end: list[int] = Field(description="the last step that a trial of the study requests there")
    trained: list[int] = Field(description="the last of these steps that is trained")
    trials: list[int] = Field(description="the number of trials of the study on its path")
    running: list[list[list[int]]] = Field(description="the first and last step of each stage under way there")
    checkpoints: list[list[int]] = Field(description="the steps of kept checkpoints")
    steps: list[list[int]] = Field(description="the steps at which the metric was measured")
    values: list[list[float]] = Field(
        description="the metric there; with many points, the lowest and highest of each part"
    )
    means: list[list[list[float]]] = Field(description="for first repeats: step, mean and deviation of all repeats")


class TreeTrials(Answer):
    """The trials by number."""

    node: list[int] = Field(description="the index of its last node")
    steps: list[int]
    state: list[str]
    average_of: list[list[list[int]]] = Field(description="for an average: trial and step of each of its states")
    repeats: list[list[int]] = Field(description="the indices of the last nodes of its other repeats")


class Tree(Answer):
    """The study's part of the search plan, with the trials that share it."""

    count: int = Field(description="the number of nodes")
    nodes: TreeNodes
    forms: list[dict[str, str]] = Field(
        description="the hyper-parameters that change at the node; empty for a large tree"
    )
    trials: TreeTrials


class RankedRung(Answer):
    """A rung and the trials that reached it."""

    bracket: int
    rung: int
    steps: int
    entered: int = Field(description="the number of trials that were sent there")
    trials: list[int] = Field(description="the best first, trials that failed before the rung last")
    values: list[float | None] = Field(description="the value of each there; null for a failed trial")
    promoted: list[int] = Field(description="the trials that were promoted")


class Rungs(Answer):
    """The rungs of a study."""

    items: list[RankedRung]
    telling: int | None = Field(
        default=None, description="the last rung with 30 results, or else with a third of the most results"
    )


class Spans(Answer):
    """Stages on slots, in order of their start."""

    slot: list[str]
    members: list[list[str]] = Field(description="the slots that are lent to it")
    node: list[str]
    start: list[int] = Field(description="the step after which it began")
    end: list[int]
    own: list[bool] = Field(description="whether this study is charged for it, and not another one of the plan")
    begun: list[int] = Field(description="the position of the event at its start")
    ended: list[int | None]
    begun_at: list[float]
    ended_at: list[float | None]
    outcome: list[str] = Field(description="running, done, failed, lost, undelivered, stopped or interrupted")
    proof: list[Literal["check", "handover", "whole", "audit"] | None] = Field(
        description="the kind of verification; null for training"
    )


class Marks(Answer):
    """Events within the spans."""

    position: list[int]
    at: list[float]
    kind: list[Annotated[MarkWord | str, Word(MarkWord)]]
    span: list[int] = Field(description="the index of the span")
    step: list[int]


class Timeline(Answer):
    """The work of each slot over time."""

    count: int = Field(description="the number of spans")
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
    slot_seconds: float = Field(description="the slot time of the study until then")
    trial: int
    step: int
    value: float


class History(Answer):
    """The decisions, the improvements of the best result, and their times."""

    position: int = Field(description="the position of the last event")
    at: float
    decisions: Decisions
    best: list[BetterResult]
    times: list[list[float]] = Field(description="position and time of some events, for a time axis")


class Schedule(Answer):
    """A hyper-parameter of a trial over its steps."""

    name: str
    steps: list[int] = Field(description="some steps, the first and the last among them")
    values: list[Any] = Field(description="the value at each")
    text: str = Field(
        description="a short form of the values: the first, the turning points and the last, such as 0.1 → 0.01"
    )


class Schedules(Answer):
    """The hyper-parameters of a trial."""

    items: list[Schedule]


class ImportanceOf(Answer):
    """The share of one hyper-parameter."""

    name: str = Field(description="a column of the trials, such as hp.lr.init")
    importance: float = Field(description="its share; all shares add up to 1")
    interval: list[float] = Field(description="the 90 % interval over bootstrap samples of the trials")


class Importance(Answer):
    """Which hyper-parameters the result depends on."""

    method: str
    rung: int | None = Field(description="the rung whose results were used; null for the last result of each trial")
    trials: int = Field(description="the number of trials with a result")
    note: str | None = Field(description="why there is no result")
    items: list[ImportanceOf]


class Blocks(Answer):
    """The work of slots, block by block, as columns. Seconds since the first block, without idle times."""

    seconds: float = Field(description="until the last block ends")
    steps: int
    slot: list[int] = Field(description="the row of each block, from 0 on")
    begun: list[float]
    ended: list[float]
    trials: list[int] = Field(description="the number of trials of the study that need the block")
    again: list[bool] = Field(description="whether an earlier block had trained the same steps for another trial")


class SideBySide(Answer):
    """The study as it ran, and a simulation in which each trial trains alone."""

    slots: int = Field(description="the number of rows: the most slots that trained for it at once")
    seconds_per_step: float = Field(
        description="the pace of a slot, from which `alone` is computed; 0 while that is unknown"
    )
    shared: Blocks = Field(description="as it happened")
    alone: Blocks = Field(description="computed: the same trials and decisions, each trial trained from its first step")
    text: str = Field(description="both in words")
