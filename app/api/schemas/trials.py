"""Trials: how they are asked for, listed and shown."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Result
from app.api.schemas.examples import TRIAL, TRIAL_DETAIL, Json, TrialState, shown_as
from app.api.schemas.notes import Note
from stagetree.spec import TrialSpec


class Prediction(BaseModel):
    """What a tuner that predicts learning curves took a trial for when it judged it last."""

    category: Literal["promising", "opportunistic", "poor"] = Field(alias="class")
    p: float | None = Field(description="the probability that it reaches the target in time; null if it did not matter")
    expected_seconds: float | None = Field(description="the expected remaining time until then, in seconds")
    target: float | None
    step: int | None = Field(description="the step after which it was judged")


class Trial(BaseModel):
    """A configuration that is asked to train for a number of steps."""

    model_config = shown_as(TRIAL)
    trial: int = Field(description="its number in the study, from 0 on")
    state: TrialState
    standing: str = Field(description="what the state means, for people: waits at rung 1: rank 5 of 9")
    steps: int = Field(description="the most steps it was asked for")
    trained: int = Field(description="the steps of those that are trained")
    value: float | None = Field(description="its last result or its best one, as the study's `value` says")
    last: Result | None = Field(description="the metric at the last step it was asked for that has one")
    best: Result | None = Field(description="the best of the metric at any step evaluated on its way")
    rung: int | None = Field(description="the rung at which it is, or to which it is on its way")
    rank: int | None = Field(description="its rank among the trials that came to the rung, from 1")
    hp: Json = Field(description="hyper-parameter to sequence")
    prediction: Prediction | None = Field(default=None, description="only of a trial that a tuner judged so")
    error: str = Field(default="", description="why it failed, in one line")
    exactness: str = Field(
        default="", description="what is to stand beside its numbers, where they are not proven to be exact"
    )


class Point(BaseModel):
    step: int
    metrics: dict[str, float | None] = Field(description="null for one that was not a finite number")


class LoggedPoint(Point):
    node: str = Field(description="the node that was trained")


class Logged(BaseModel):
    """What a trainer logged while it trained, in order of steps: means since the point before."""

    model_config = shown_as({"items": [{"step": 7, "metrics": {"train_loss": 0.41}, "node": "0f3a"}]})
    items: list[LoggedPoint]


class Failure(BaseModel):
    kind: str = Field(description="exception, out_of_memory, poison, nan, metric or storage")
    step: int
    error: str = Field(description="the traceback, or a sentence")


class TrialDetail(Trial):
    """A trial with its curve."""

    model_config = shown_as(TRIAL_DETAIL)
    asked: list[int] = Field(description="the steps for which a result was asked, in order")
    reason: Json = Field(description="who wanted it, and why")
    path: list[str] = Field(description="its nodes in the search plan, root first")
    curve: list[Point]
    not_exact: list[str] = Field(default=[], description="why it may differ in its last bits from a training alone")
    notes: list[Note] = Field(description="what people wrote down about it, in order")
    failure: Failure | None = None


class TrialPage(BaseModel):
    model_config = shown_as({"items": [TRIAL], "next_cursor": None})
    items: list[Trial]
    next_cursor: str | None


class Columns(BaseModel):
    """Many trials in little room."""

    model_config = shown_as({"count": 2, "columns": {"trial": [0, 1], "value": [0.98, None], "hp.lr": [0.1, 0.2]}})
    count: int = Field(description="how many trials there are, which is how long each column is")
    columns: dict[str, list[Any]]


class TrialBatch(BaseModel):
    """Trials in the order they were asked for."""

    model_config = shown_as({"items": [TRIAL_DETAIL]})
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
