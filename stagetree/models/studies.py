"""Studies: their results, costs and progress."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word
from stagetree.models.trials import Note, Outcome, Trial, TrialState

StudyWord = Literal["running", "paused", "completed", "failed", "cancelled"]
StudyState = Annotated[StudyWord | str, Word(StudyWord)]
DecisionWord = Literal["promote", "stop"]
VerdictWord = Literal["verified", "checked", "unchecked", "inexact", "unshared"]


class Steps(Answer, needs=()):
    """Requested, unique and executed steps."""

    requested: int = Field(description="what the trials asked for, each counted alone")
    unique: int = Field(description="distinct (beginning, step) pairs among them")
    executed: int = Field(description="steps that workers really ran, repeats included")


class Best(Answer, needs=("trial", "value", "steps")):
    """The best trial so far by the study's mode; on ties the lower number."""

    trial: int
    value: float = Field(description="its last result or its best one, as the study's `value` says")
    steps: int = Field(description="the step at which it had the value")
    hp: Json
    last: Outcome | None
    best: Outcome | None
    metrics: dict[str, float] = Field(default={}, description="as `metrics` of a trial")
    violation: float | None = Field(default=None, description="as `violation` of a trial")
    exactness: str = Field(default="", description="as `exactness` of a trial: its mark, if it has one")


class Cost(Answer, needs=()):
    """A waterfall, in steps.

    alone - stopped_early - unfinished - shared - known + repeated + retried + lost + struck = run.

    Sharing and early stopping save apart, each of its own baseline.
    """

    alone: int = Field(description="all trials, each trained alone to the end")
    stopped_early: int = Field(description="what the tuner decided not to train")
    unfinished: int = Field(description="what nobody trained, and is not saved either")
    shared: int = Field(description="what trials of the study took together")
    known: int = Field(description="what was trained for another study")
    repeated: int = Field(description="what was run again, because a later trial parts where no state was kept")
    retried: int = Field(description="what was run again after errors of the trainer")
    lost: int = Field(description="what was run again because it was lost with a worker")
    struck: int = Field(description="what was run before the trainer was seen not to be exact, and done again")
    run: int = Field(description="what workers ran for the study")
    taken: int = Field(
        description="alone - stopped_early - unfinished: what the same tuner runs without sharing, each trial by itself"
    )
    spared: int = Field(
        description="what sharing saved: shared + known - repeated - struck, or 0 where that is less, and for a study "
        "that ended without a result"
    )
    saved_by_sharing: float | None = Field(description="spared / taken; null as long as nothing is trained")
    saved_by_stopping: float | None = Field(
        description="stopped_early / (taken + stopped_early): of every trial trained to the end"
    )


class Failures(Answer, needs=()):
    """Failed trials with equal errors."""

    trials: list[int] = Field(description="their numbers")
    kind: str = Field(description="as in `failure` of a trial")
    place: str | None = Field(description="the exception, and the line that raised it")
    error: str = Field(description="the last line of it; where they differ, of one of them")
    steps: tuple[int, int] = Field(description="the first and the last step after which they failed")
    tries: int = Field(description="how often they were tried, all together")
    where: str = Field(description="what only their hyper-parameters have in common: lr >= 0.85; empty where nothing")
    text: str = Field(description="all of it, in a line")


class UnderWay(Answer, needs=("slot", "node", "start", "end", "step")):
    """A stage that a slot is training."""

    slot: str
    members: list[str] = Field(description="the slots that are lent to it")
    study: str = Field(description="the study that is charged for it")
    node: str
    start: int
    end: int
    step: int = Field(description="the last step done, as of the worker's last heartbeat")
    trials: list[int] = Field(description="the first of the study's trials that it serves")
    trial_count: int = Field(description="how many it serves")
    forms: dict[str, str] = Field(description="what each hyper-parameter does there, for people")


class TrialsDone(Answer, needs=()):
    """Trials with a first result or an end, and their expected number."""

    done: int = Field(description="trials that came to a first result, or to an end; it never goes down")
    resting: int = Field(
        description="those of them that wait at a rung, or are suspended: their tuner may ask for more of them, or not"
    )
    expected: int | None = Field(description="how many there will be; null where others say so")


class StepsDone(Answer, needs=()):
    """Unique steps that are trained, and their expected number."""

    done: int = Field(
        description="different steps that are trained, those under way included; fewer only when a worker is lost"
    )
    expected: int = Field(
        description="how many there will be, by a forecast where a tuner stops trials early; more if it asks for more"
    )


class RungStanding(Answer):
    """A rung with its numbers of trials."""

    bracket: int
    rung: int
    steps: int
    entered: int = Field(description="trials that were sent there")
    arrived: int = Field(description="those of them with a result there")
    failed: int
    promoted: int = Field(description="those of them that were promoted")


class Decision(Answer, needs=("kind", "trial", "steps")):
    """A decision of the tuner about a trial."""

    kind: Annotated[DecisionWord | str, Word(DecisionWord)]
    trial: int
    steps: int
    reason: Json


class Progress(Answer, needs=()):
    """The progress of a study, and the slots that work for it."""

    trials: TrialsDone
    steps: StepsDone
    seconds_left: float | None = Field(description="at the pace so far; null while nothing can be said")
    rungs: list[RungStanding]
    last: Decision | None = Field(description="the tuner's last decision about a trial that was there")
    running: list[UnderWay]


class Share(Answer, needs=()):
    """A study's present and fair share of the slots."""

    used: int = Field(description="the slots that train for it")
    due: float | None = Field(description="its share by weight and demand, while other studies compete for slots")


class Exactness(Answer, needs=()):
    """Whether training that resumed from saved states was compared with training that did not stop there."""

    verdict: Annotated[VerdictWord | str, Word(VerdictWord)]
    text: str = Field(description="the verdict in one line, for people")
    mark: str = Field(description="the mark of the study; empty where no trial has one")
    reason: str = Field(description="the first difference and its likely cause, or which trials are unchecked and why")
    unchecked: list[int] = Field(
        default=[], description="the steps at which training resumed and that were not compared"
    )
    compared: int = Field(default=0, description="at how many distinct steps resumed training was compared")
    isolated: bool = Field(description="whether each trial is trained alone, since the trainer is not exact")
    audited: bool = Field(description="whether every trial is trained again to compare, as a user asked")
    proof_steps: int = Field(description="steps that were trained again, only to compare")


class StudyStory(Answer, needs=()):
    """What came of a study, in two lines or three for people, and the numbers in them."""

    lines: list[str] = Field(
        description="why the best trial won, or leads; what sharing and early stopping saved; and the `noise`, if any"
    )
    results: int = Field(description="how many trials have a result, of those that are ranked")
    as_far: int = Field(description="how many of them were trained as far as the best one was when it had its value")
    equal: list[int] = Field(
        description="the other trials with the same value; of several metrics, the rest of its front"
    )
    within_noise: list[int] = Field(
        default=[], description="trials whose repeats do not tell them from the best: fewer than 2 standard errors off"
    )
    noise: str = Field(
        default="",
        description="a sentence on these or on equal results: what has no effect, or that `repeats` would tell",
    )
    sharers: int = Field(description="how many other trials share the `shared_beginning` of the best one")
    shared_beginning: int = Field(description="the steps of that: where most is shared, counted over these trials")
    steps_by_sharing: int = Field(description="as `spared` of `cost`")
    seconds_by_sharing: float = Field(
        description="the slot time of these steps, at the pace of the study; 0 as long as that is not known"
    )
    steps_by_stopping: int = Field(description="what early stopping saved")
    seconds_by_stopping: float = Field(description="the slot time of these")


class StudyAnswer(Answer, needs=("study", "state")):
    """A study with its results so far."""

    study: str
    name: str
    state: StudyState
    story: StudyStory
    error: str | None
    project: str = Field(default="", description="whose it is; what is trained is shared within a project")
    owner: str = Field(default="", description="the name of the token, or of the user, that submitted it")
    not_exact: list[str] = Field(
        default=[], description="why results may differ in their last bits from those of trials trained alone"
    )
    exactness: Exactness
    unread: list[str] = Field(
        default=[], description="hyper-parameters that its trainer has read in none of the steps of a check"
    )
    waits_for: list[str] = Field(
        default=[],
        description="what holds it up: a store that is away, by slot; a trainer that no slot has; an audit that waits; "
        "an error in its tuner's or plan's work, which the scheduler tries again",
    )
    begins: dict[str, Any] | None = Field(
        default=None,
        description="the weights that it begins from, in a `text`; `file`, or `study`, `trial` and `step`; `sha256`",
    )
    inputs: list[dict[str, Any]] | None = Field(
        default=None, description="what it reads, as it was when it was submitted: `path`, `files`, `bytes`, `sha256`"
    )
    packing: dict[str, Any] | None = Field(
        default=None,
        description="how many trials its packs have room for, why, and how they do on each kind of device",
    )
    gpu_sharing: list[dict[str, Any]] | None = Field(
        default=None,
        description="how much slower a step was while several slots of a GPU were busy, and what it gained",
    )
    ending: str | None = Field(
        default=None, description="what ended it before its tuner did: target, patience, max_time or a budget"
    )
    metric: str
    mode: str
    value: str = Field(description="last or best: which of a trial's results is its value")
    tuner: str = Field(description="the tuner's kind")
    sampler: str = Field(default="", description="the kind of its sampler; empty where it has none")
    grows_by: str | None = Field(
        default=None,
        description="the field of its tuner by which it can be reopened when it is completed; null: it cannot",
    )
    grows_from: int | None = Field(default=None, description="the value of that field, of which there can be more")
    best: Best | None
    metrics: list[dict[str, str]] = Field(default=[], description="the `name` and `mode` of each of several metrics")
    constraints: list[str] = Field(default=[], description="what a result must keep to, as in the study file")
    front: list[Best] = Field(default=[], description="of several metrics: the best trials, the first ones far apart")
    counts: dict[TrialState, int] = Field(description="trials by state")
    failed: int = Field(default=0, description="how many trials failed")
    failures: list[Failures] = Field(
        default=[], description="failed trials, those with equal errors together, the most frequent first"
    )
    steps: Steps
    cost: Cost
    merge_rate: float | None = Field(description="requested / unique; null as long as nothing is asked for")
    gpu_seconds: float
    wall_seconds: float = Field(
        description="from submission to the end, or to now; not while it was over before it was reopened"
    )
    submitted_at: float
    finished_at: float | None
    slots: Share
    progress: Progress
    learned: list[str] = Field(
        default=[], description="of each study of `learn_from`, what its sampler began with, in a sentence"
    )
    notes: list[Note] = Field(description="what people wrote down about it and its trials, in order")
    tags: list[str] = Field(default=[], description="the words that people list it under")
    attributes: Json = Field(default={}, description="what people set, by name")
    spec: Json = Field(
        default={}, title="File", description="the study file as it was submitted; left out with the trials"
    )
    trials: list[Trial] = []


class StudyListed(Answer, needs=("study", "state")):
    """A study in the list."""

    study: str
    name: str
    state: StudyState
    submitted_at: float
    plan: str
    slots: Share
    begins: str = Field(default="", description="the weights that it begins from, in a few words, if it does")
    project: str = Field(default="", description="whose it is; what is trained is shared within a project")
    owner: str = Field(default="", description="the name of the token, or of the user, that submitted it")
    tags: list[str] = Field(default=[], description="the words that people list it under")
