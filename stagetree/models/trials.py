"""Trials, their results and how they failed; suggestions of trials; and the plan that they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word

TrialWord = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"]
TrialState = Annotated[TrialWord | str, Word(TrialWord)]
Category = Literal["promising", "opportunistic", "poor"]


class Outcome(Answer):
    """The study's metric after a step; of a trial with repeats that differ there, the mean of them."""

    step: int
    value: float
    deviation: float | None = Field(default=None, description="standard deviation of the repeats, as of a sample")
    repeats: int = Field(default=1, description="how many they are")


class Prediction(Answer, needs=()):
    """What a tuner that predicts learning curves took a trial for when it judged it last."""

    category: Annotated[Category | str, Word(Category)] = Field(alias="class")
    p: float | None = Field(
        description="the probability that it reaches the target in time; null if it did not matter, or is not proven"
    )
    expected_seconds: float | None = Field(description="the expected remaining time until then, in seconds")
    target: float | None
    step: int | None = Field(description="the step after which it was judged")
    proven: bool = Field(
        description="whether what was foretold in this study before has come true as often as it said; until then p "
        "and expected_seconds are null"
    )


class Trial(Answer, needs=("trial", "state", "steps")):
    """A configuration and the number of steps to train it for."""

    trial: int = Field(description="its number in the study, from 0 on")
    state: TrialState
    standing: str = Field(
        description="what the state means, for people: waits at rung 1: rank 5 of 9; of a failed one, why it failed"
    )
    steps: int = Field(description="the most steps it was asked for")
    trained: int = Field(description="the last step of those that was trained or measured")
    value: float | None = Field(description="its last result or its best one, as the study's `value` says")
    last: Outcome | None = Field(description="the metric at the last step it was asked for that has one")
    best: Outcome | None = Field(description="the best of the metric at any step evaluated on its way")
    rung: int | None = Field(description="the rung at which it is, or to which it is on its way")
    rank: int | None = Field(description="its rank among the trials that came to the rung, from 1")
    hp: Json = Field(description="hyper-parameter to sequence")
    metrics: dict[str, float] = Field(
        default={},
        description="with several metrics, or constraints: all that the study judges by, where it has its value",
    )
    violation: float | None = Field(
        default=None, description="by how much it breaks constraints, each in parts of its bound: 0 if it keeps to them"
    )
    front: bool = Field(
        default=False,
        description="whether it keeps to them, and no other trial is as good in all metrics and better in one",
    )
    prediction: Prediction | None = Field(default=None, description="only of a trial that a tuner judged so")
    cooldown_of: int | None = Field(
        default=None, description="only of a cooldown: the trial that it was branched off, whose value at a rung it has"
    )
    error: str = Field(default="", description="why it failed, in one line, as in `standing`")
    exactness: str = Field(
        default="", description="the mark beside its numbers, where they were not compared or may be wrong"
    )


class Point(Answer):
    """Metrics after a step."""

    step: int
    metrics: dict[str, float | None] = Field(description="null for one that was not a finite number")


class LoggedPoint(Point, needs=()):
    """What a trainer logged with `log` up to a step, as means since the point before; and the node it was training."""

    node: str = Field(description="the node that was trained")


class Failure(Answer):
    """What went wrong after a step."""

    kind: str = Field(description="exception, out_of_memory, poison, nan, metric or storage")
    step: int
    error: str = Field(description="the traceback, or a sentence")
    tries: int = Field(default=1, description="how often it was tried")
    place: str | None = Field(default=None, description="the exception, and the line that raised it")
    equal_to: tuple[str, int] | None = Field(
        default=None, description="the study and trial that the same error had ended before, where that was decisive"
    )


class Note(Answer, needs=("event", "time", "text")):
    """A note on a study or trial."""

    event: int = Field(description="the position of its event")
    time: float
    trial: int | None = Field(description="the trial that it is about; null: the whole study")
    text: str
    by: str = Field(default="", description="the principal that wrote it, if there is one")
    corrected_at: float | None = Field(default=None, description="when its text was last replaced, if it was")


class Averaged(Answer):
    """A state that an average is made of."""

    trial: int
    step: int
    weight: float
    value: float | None = Field(description="of that trial")


class TrialDetail(Trial, needs=()):
    """A trial with its curve."""

    asked: list[int] = Field(description="the steps for which a result was asked, in order")
    reason: Json = Field(description="who wanted it, and why")
    decisions: list[str] = Field(default=[], description="decisions after its start, in order, each with the reason")
    path: list[str] = Field(description="its nodes in the search plan, root first; of its first repeat")
    repeats: list[list[str]] = Field(default=[], description="the nodes of its other repeats, each as `path`")
    curve: list[Point] = Field(description="of a trial with repeats, the means, where all of them are measured")
    not_exact: list[str] = Field(default=[], description="why it may differ in its last bits from a training alone")
    begins: dict[str, Any] | None = Field(default=None, description="the weights that it begins from, as of its study")
    notes: list[Note] = Field(description="what people wrote down about it, in order")
    failure: Failure | None = None
    average_of: list[Averaged] = Field(
        default=[], description="of an average, what it is the mean of, in the order in which that is added up"
    )


class Branch(Answer):
    """A trial that is made of others, by branching or averaging, and its price in steps before it was asked for."""

    steps: int = Field(description="of the trial, in all")
    shared: int = Field(description="those that are trained already, or asked for by others")
    new: int = Field(description="those that only it needs")
    again: int = Field(description="those that are trained once more, since no state is kept where the new ones begin")
    trial: TrialDetail | None = Field(default=None, description="null where only the price was asked for")


class Waiting(Answer):
    """The callers that wait for a result, and the step."""

    step: int
    study: str
    trial: int


class Running(Answer):
    """The steps (start, end] that a chain trains."""

    chain: str
    start: int
    end: int


class Node(Answer, needs=("id", "start")):
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


class Plan(Answer):
    """The search plan: all trials of all studies on one trainer, version, arguments and seed."""

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    parallel: str = Field(
        default="tree", description="how several devices train, with their number where that is part of the results"
    )
    studies: list[str]
    nodes: list[Node]


class Place(Answer):
    """A step of a node."""

    node: str
    step: int


class Stage(Answer, needs=("node", "start", "end")):
    """Train a node from one step to another; start equals end where only an evaluation is missing."""

    node: str
    start: int
    end: int
    parent: Place | None = Field(description="the end of the stage before, null where it begins at a checkpoint")
    ready: bool = Field(description="it can begin now")


class StageTree(Answer):
    """The stages that are outstanding for the study, parents first."""

    stages: list[Stage]
    critical_path_steps: int


class Suggestion(Answer, needs=("suggestion", "hp")):
    """A suggested configuration, whole or in part."""

    suggestion: int = Field(description="its number in the study, from 0 on")
    hp: Json = Field(description="what was suggested: by hyper-parameter, or by the place of a free value")
    by: str = Field(description="the principal that suggested it; empty for none")
    at: float = Field(description="when, in Unix seconds")
    trial: int | None = Field(description="the trial that came of it; null while its place has not come")
    withdrawn_at: float | None = Field(default=None, description="when it was withdrawn, in Unix seconds; else null")


class Proposed(Answer):
    """The configuration that would take the tuner's next place."""

    hp: Json
    reason: Json = Field(description="as it would be in the trial's `reason`: values drawn, a price, a suggestion")


class SamplerState(Answer, needs=("sampler",)):
    """How much a study's sampler knows, and its next proposal; nothing is changed by asking."""

    sampler: str = Field(description="its kind; empty where the tuner itself says what its trials are")
    step: int | None = Field(description="the step whose results are in its model; null for the last of each trial")
    results: int | None = Field(description="how many, of other studies too; null for a sampler that does not learn")
    next: Proposed | None = Field(description="null where there is none")
    text: list[str] = Field(description="the same in sentences, with reasons")
    refuses: str = Field(description="why no further suggestion is taken; empty where one is")


class Suggestions(Answer):
    """The suggestions, in the order in which their places come."""

    items: list[Suggestion]
