"""Trials, their results and how they failed; suggestions of trials; and the plan that they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stagetree.models.answer import Answer, Json, Word

TrialWord = Literal["waiting", "running", "completed", "pruned", "failed", "cancelled"]
TrialState = Annotated[TrialWord | str, Word(TrialWord)]
Category = Literal["promising", "opportunistic", "poor"]


class Outcome(Answer):
    """The study's metric after a step; the mean over repeats if these differ."""

    step: int
    value: float
    deviation: float | None = Field(default=None, description="the sample standard deviation of the repeats")
    repeats: int = Field(default=1, description="the number of repeats")
    repeats_from: int = Field(
        default=0,
        description="the step from which the repeats differ; if it is not 0, the deviation has the noise of the branch "
        "alone",
    )


class Prediction(Answer, needs=()):
    """The last judgement of a trial by a tuner that predicts learning curves."""

    category: Annotated[Category | str, Word(Category)] = Field(alias="class")
    p: float | None = Field(
        description="the probability of reaching the target in time; null if it was not needed, or is not proven"
    )
    expected_seconds: float | None = Field(description="the expected remaining time until then, in seconds")
    target: float | None
    step: int | None = Field(description="the step after which it was judged")
    proven: bool = Field(
        description="whether earlier predictions in this study came true as often as predicted; until then p "
        "and expected_seconds are null"
    )


class Trial(Answer, needs=("trial", "state", "steps")):
    """A configuration and the number of steps to train it for."""

    trial: int = Field(description="its number in the study, from 0 on")
    state: TrialState = Field(
        description="`completed`: it has all requested results. `pruned`: the tuner ended it before its last step"
    )
    standing: str = Field(
        description="the state in words, such as 'waits at rung 1: rank 5 of 9', or the reason of a failure"
    )
    steps: int = Field(description="the requested number of steps")
    trained: int = Field(description="the last requested step that was trained or measured")
    value: float | None = Field(description="its last or its best result, according to the study's `value`")
    last: Outcome | None = Field(description="the metric at the last requested step with a result")
    best: Outcome | None = Field(description="the best of the metric at any evaluated step along its path")
    rung: int | None = Field(description="the rung that it has reached, or that it trains towards")
    rank: int | None = Field(description="its rank among the trials that reached the rung, from 1")
    hp: Json = Field(description="hyper-parameter to sequence")
    metrics: dict[str, float] = Field(
        default={},
        description="with several metrics or constraints: all metrics that the study uses, at the step of its value",
    )
    violation: float | None = Field(
        default=None,
        description="the total violation of constraints, each relative to its bound; 0 if it satisfies them",
    )
    front: bool = Field(
        default=False,
        description="whether it is on the Pareto front: it satisfies the constraints and no other trial dominates it",
    )
    prediction: Prediction | None = Field(
        default=None, description="only for a trial that a tuner judged by its predicted curve"
    )
    cooldown_of: int | None = Field(
        default=None,
        description="only for a cooldown: the trial from which it was branched, which gets its value at the rung",
    )
    merge_of: int | None = Field(
        default=None,
        description="only for a merge at a rung: the trial whose last states it averages, which gets its value there",
    )
    error: str = Field(default="", description="why it failed, in one line")
    exactness: str = Field(
        default="", description="a mark for numbers that were not compared or may be wrong; empty for none"
    )


class Point(Answer):
    """Metrics after a step."""

    step: int
    metrics: dict[str, float | None] = Field(description="null for a value that was not finite")


class LoggedPoint(Point, needs=()):
    """Means of the values that a trainer logged with `log` since the previous point."""

    node: str = Field(description="the node that was trained")


class Failure(Answer):
    """What went wrong after a step."""

    kind: str = Field(description="exception, out_of_memory, poison, nan, metric or storage")
    step: int
    error: str = Field(description="the traceback, or a sentence")
    tries: int = Field(default=1, description="the number of tries")
    place: str | None = Field(default=None, description="the exception, and the line that raised it")
    equal_to: tuple[str, int] | None = Field(
        default=None,
        description="the study and trial that the same error had ended before, if that decided against a retry",
    )


class Note(Answer, needs=("event", "time", "text")):
    """A note on a study or trial."""

    event: int = Field(description="the position of its event")
    time: float
    trial: int | None = Field(description="the trial that it is about; null for the whole study")
    text: str
    by: str = Field(default="", description="the principal that wrote it; empty for none")
    corrected_at: float | None = Field(default=None, description="when its text was last replaced; null for never")


class Averaged(Answer):
    """A state that an average is made of."""

    trial: int
    step: int
    weight: float
    value: float | None = Field(description="the result of that trial at the step")


class TrialDetail(Trial, needs=()):
    """A trial with its curve."""

    asked: list[int] = Field(description="the steps for which a result was requested, in order")
    reason: Json = Field(description="what started it, and why")
    decisions: list[str] = Field(default=[], description="decisions after its start, in order, each with the reason")
    path: list[str] = Field(description="the nodes of its first repeat in the search plan, root first")
    starts: list[int] = Field(default=[], description="the step after which each node of `path` begins")
    repeats: list[list[str]] = Field(default=[], description="the nodes of its other repeats, each as `path`")
    curve: list[Point] = Field(description="its results; with repeats, the means where all of them are measured")
    not_exact: list[str] = Field(
        default=[], description="reasons why it may differ in its last bits from the trial trained alone"
    )
    begins: dict[str, Any] | None = Field(default=None, description="its initial weights, as for its study")
    notes: list[Note] = Field(description="the notes on it, in order")
    failure: Failure | None = None
    average_of: list[Averaged] = Field(default=[], description="for an average: its states, in the order of summation")


class Branch(Answer):
    """A trial that is made of others, by branching or averaging, and its price in steps before the request."""

    steps: int = Field(description="the steps of the trial in all")
    shared: int = Field(description="steps that are trained already, or requested by other trials")
    new: int = Field(description="steps that only this trial needs")
    again: int = Field(description="steps to train again, because no state is kept where the new ones begin")
    trial: TrialDetail | None = Field(default=None, description="null if only the price was requested")


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
    forms: dict[str, str] = Field(description="a description of each hyper-parameter here")
    studies: list[str] = Field(description="the studies that have a trial here")
    checkpoints: list[int] = Field(description="the steps at which the state is kept")
    metrics: list[Point]
    waiting: list[Waiting] = Field(description="the trials that wait for a result, with the step")
    running: list[Running] = Field(description="the steps (start, end] that are being trained")


class Plan(Answer):
    """The search plan: all trials of all studies on one trainer, version, arguments and seed."""

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    parallel: str = Field(
        default="tree", description="how several devices train together, with their number if results depend on it"
    )
    studies: list[str]
    nodes: list[Node]


class Place(Answer):
    """A step of a node."""

    node: str
    step: int


class Stage(Answer, needs=("node", "start", "end")):
    """Train a node from one step to another; start equals end if only an evaluation is missing."""

    node: str
    start: int
    end: int
    parent: Place | None = Field(description="the end of the previous stage; null if it begins at a checkpoint")
    ready: bool = Field(description="whether it can begin now")


class StageTree(Answer):
    """The stages that are outstanding for the study, parents first."""

    stages: list[Stage]
    critical_path_steps: int


class Suggestion(Answer, needs=("suggestion", "hp")):
    """A suggested configuration, whole or in part."""

    suggestion: int = Field(description="its number in the study, from 0 on")
    hp: Json = Field(description="the suggested values, by hyper-parameter or by path of a free value")
    by: str = Field(description="the principal that suggested it; empty for none")
    at: float = Field(description="when, in Unix seconds")
    trial: int | None = Field(description="the trial made from it; null until then")
    withdrawn_at: float | None = Field(default=None, description="when it was withdrawn, in Unix seconds; else null")


class Proposed(Answer):
    """The configuration that would take the tuner's next place."""

    hp: Json
    reason: Json = Field(description="as in the `reason` of a trial: sampled values, a price, a suggestion")


class SamplerState(Answer, needs=("sampler",)):
    """How much a study's sampler knows, and its next proposal; nothing is changed by asking."""

    sampler: str = Field(description="its kind; empty if the tuner itself chooses the configurations")
    step: int | None = Field(
        description="the step whose results are in its model; null for the last result of each trial"
    )
    results: int | None = Field(
        description="the number of these results, including other studies; null for a sampler that does not learn"
    )
    next: Proposed | None = Field(description="null if there is none")
    text: list[str] = Field(description="the same in sentences, with reasons")
    refuses: str = Field(description="why no further suggestion is accepted; empty if one is")


class Suggestions(Answer):
    """The suggestions, in the order in which their places come."""

    items: list[Suggestion]
