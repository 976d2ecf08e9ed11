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
    """The best trial by the study's mode, of all results; on ties the lower number."""

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

    Sharing and early stopping are counted separately, each against its own baseline.
    """

    alone: int = Field(description="the steps of all trials, each trained alone to the end")
    stopped_early: int = Field(description="steps that the tuner decided not to train")
    unfinished: int = Field(description="steps that were neither trained nor saved")
    shared: int = Field(description="steps that one trial of the study trained for another")
    known: int = Field(description="steps that another study had trained")
    repeated: int = Field(description="steps trained again because a later trial branches off where no state was kept")
    retried: int = Field(description="steps trained again after errors of the trainer")
    lost: int = Field(description="steps trained again because a worker was lost")
    struck: int = Field(description="steps trained again because the trainer turned out not to be exact")
    run: int = Field(description="steps that workers trained for the study")
    taken: int = Field(description="alone - stopped_early - unfinished: the steps of the same tuner without sharing")
    spared: int = Field(
        description="steps saved by sharing: shared + known - repeated - struck; at least 0, and 0 for a study that "
        "ended without a result"
    )
    saved_by_sharing: float | None = Field(description="spared / taken; null before anything is trained")
    saved_by_stopping: float | None = Field(description="stopped_early / (taken + stopped_early)")


class Failures(Answer, needs=()):
    """Failed trials with equal errors."""

    trials: list[int] = Field(description="their numbers")
    kind: str = Field(description="as in `failure` of a trial")
    place: str | None = Field(description="the exception, and the line that raised it")
    error: str = Field(description="the last line of the traceback; if the lines differ, that of one trial")
    steps: tuple[int, int] = Field(description="the first and the last step after which they failed")
    tries: int = Field(description="the number of tries of all these trials")
    where: str = Field(
        description="a condition that only their hyper-parameters meet, such as lr >= 0.85; empty for none"
    )
    text: str = Field(description="a summary in one line")


class UnderWay(Answer, needs=("slot", "node", "start", "end", "step")):
    """A stage that a slot is training."""

    slot: str
    members: list[str] = Field(description="the slots that are lent to it")
    study: str = Field(description="the study that is charged for it")
    node: str
    start: int
    end: int
    step: int = Field(description="the last trained step, as of the worker's last heartbeat")
    since: float = Field(default=0.0, description="when the slot was given this work, in Unix seconds")
    proof: str | None = Field(
        default=None, description="the kind of verification, if finished steps are trained again; null for training"
    )
    trials: list[int] = Field(description="the first of the study's trials that it serves or verifies")
    trial_count: int = Field(description="the number of trials that it serves or verifies")
    forms: dict[str, str] = Field(description="a description of each hyper-parameter there")


class TrialsDone(Answer, needs=()):
    """Trials with a first result or an end, and their expected number."""

    done: int = Field(description="trials with a first result or an end; it never decreases")
    resting: int = Field(
        description="trials among them that wait at a rung or are suspended, and that the tuner may still continue"
    )
    expected: int | None = Field(description="the expected number of trials; null if users or programs add them")


class StepsDone(Answer, needs=()):
    """Unique steps that are trained, and their expected number."""

    done: int = Field(
        description="unique steps trained so far, including stages under way; decreases only when a worker is lost"
    )
    expected: int = Field(
        description="the expected number of unique steps, by a forecast if the tuner stops trials early"
    )


class RungStanding(Answer):
    """A rung with its numbers of trials."""

    bracket: int
    rung: int
    steps: int
    entered: int = Field(description="trials that were sent to the rung")
    arrived: int = Field(description="trials among them with a result at the rung")
    failed: int
    promoted: int = Field(description="trials among them that were promoted")
    tied: int = Field(default=0, description="the most equal results of which some were promoted and others were not")


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
    seconds_left: float | None = Field(description="an estimate by the pace until now; null while there is none")
    rungs: list[RungStanding]
    last: Decision | None = Field(description="the tuner's last decision about an existing trial")
    running: list[UnderWay]


class Share(Answer, needs=()):
    """A study's present and fair share of the slots."""

    used: int = Field(description="the number of slots that train for it")
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
    compared: int = Field(default=0, description="the number of distinct steps at which resumed training was compared")
    isolated: bool = Field(description="whether each trial is trained alone, since the trainer is not exact")
    audited: bool = Field(description="whether a user requested an audit, which trains every trial again and compares")
    proof_steps: int = Field(description="verification steps: trained again only to compare")


class StudyStory(Answer, needs=()):
    """The outcome of a study in two or three lines, and the numbers in them."""

    lines: list[str] = Field(
        description="why the best trial leads; the savings of sharing and early stopping; and the `noise`, if any"
    )
    question: str = Field(
        default="", description="what the study asks, such as: Which lr and bs give the highest val_accuracy?"
    )
    results: int = Field(description="the number of ranked trials with a result")
    as_far: int = Field(
        description="the number of them that were trained at least as far as the best one for its value"
    )
    equal: list[int] = Field(
        description="the other trials with the same value; with several metrics, the other trials of the Pareto front"
    )
    within_noise: list[int] = Field(
        default=[], description="trials whose repeats differ from the best by less than 2 standard errors"
    )
    noise: str = Field(default="", description="a sentence on these trials or on equal results, with advice")
    sharers: int = Field(description="the number of other trials that share the `shared_beginning` of the best one")
    shared_beginning: int = Field(
        description="the length of that beginning in steps, chosen so that most steps are shared in all"
    )
    steps_by_sharing: int = Field(description="as `spared` of `cost`")
    seconds_by_sharing: float = Field(
        description="the slot time of these steps, at the pace of the study; 0 while that is unknown"
    )
    steps_by_stopping: int = Field(description="steps saved by early stopping")
    seconds_by_stopping: float = Field(description="the slot time of these steps")


class StudyAnswer(Answer, needs=("study", "state")):
    """A study with its current results."""

    study: str
    name: str
    state: StudyState
    story: StudyStory
    error: str | None = Field(description="why it failed: a sentence and, for errors of the trainer, the traceback")
    failed_check: int | None = Field(
        default=None,
        description="only if the trainer failed its check: the trial with whose values; its log has the output",
    )
    project: str = Field(default="", description="the project; trained steps are shared within a project")
    owner: str = Field(default="", description="the token or user that submitted it")
    not_exact: list[str] = Field(
        default=[], description="reasons why results may differ in their last bits from trials trained alone"
    )
    exactness: Exactness
    unread: list[str] = Field(default=[], description="hyper-parameters that its trainer never read during a check")
    waits_for: list[str] = Field(
        default=[],
        description="reasons why it waits: an unavailable store, by slot; a trainer that no slot has; a waiting audit; "
        "an error in its tuner or plan, which the scheduler retries",
    )
    begins: dict[str, Any] | None = Field(
        default=None, description="its initial weights: a `text`; `file`, or `study`, `trial` and `step`; `sha256`"
    )
    inputs: list[dict[str, Any]] | None = Field(
        default=None, description="its inputs at the time of submission: `path`, `files`, `bytes`, `sha256`"
    )
    packing: dict[str, Any] | None = Field(
        default=None,
        description="the number of lanes of its packs, the reason, and measurements on each kind of device",
    )
    gpu_sharing: list[dict[str, Any]] | None = Field(
        default=None, description="the slowdown of a step while several slots of a GPU were busy, and the gain"
    )
    ending: str | None = Field(
        default=None, description="the limit that ended it before its tuner did: target, patience, max_time or a budget"
    )
    metric: str
    mode: str
    value: str = Field(description="which result is a trial's value: last or best")
    tuner: str = Field(description="the tuner's kind")
    sampler: str = Field(default="", description="the kind of its sampler; empty for none")
    grows_by: str | None = Field(
        default=None,
        description="the field of its tuner that reopens it, when raised after completion; null if none does",
    )
    grows_from: int | None = Field(default=None, description="the present value of that field")
    best: Best | None
    metrics: list[dict[str, str]] = Field(default=[], description="the `name` and `mode` of each of several metrics")
    constraints: list[str] = Field(default=[], description="the constraints on results, as in the study file")
    front: list[Best] = Field(
        default=[], description="with several metrics, the trials of the Pareto front, widely spread ones first"
    )
    counts: dict[TrialState, int] = Field(description="trials by state")
    failed: int = Field(default=0, description="the number of failed trials")
    failures: list[Failures] = Field(
        default=[], description="failed trials grouped by error, the most frequent error first"
    )
    steps: Steps
    cost: Cost
    merge_rate: float | None = Field(description="requested / unique; null before anything is requested")
    gpu_seconds: float
    wall_seconds: float = Field(
        description="from submission to the end, or until now; without the time between an end and a reopening"
    )
    submitted_at: float
    finished_at: float | None
    budget_left: dict[str, float] = Field(
        default={}, description="the rest of each of its budgets, by the field of the study file"
    )
    slots: Share
    progress: Progress
    learned: list[str] = Field(
        default=[], description="a sentence on the results that its sampler took from each study of `learn_from`"
    )
    notes: list[Note] = Field(description="the notes on it and on its trials, in order")
    tags: list[str] = Field(default=[], description="its tags")
    attributes: Json = Field(default={}, description="its attributes, by name")
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
    begins: str = Field(default="", description="its initial weights in a few words; empty for none")
    project: str = Field(default="", description="the project; trained steps are shared within a project")
    owner: str = Field(default="", description="the token or user that submitted it")
    tags: list[str] = Field(default=[], description="its tags")
