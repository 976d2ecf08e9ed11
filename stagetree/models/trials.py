"""Trials, their results and how they failed."""

from __future__ import annotations

from typing import Literal

from stagetree.models.answer import Answer, Json

TrialState = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"] | str


class Outcome(Answer):
    """The study's metric after a step."""

    step: int
    value: float


class Trial(Answer):
    """A configuration that is asked to train for a number of steps.

    `value` is its `last` result or its `best` one, as the study says; `standing` says what its state means.
    `prediction` is what a tuner such as POP took it for last: `class`, `p`, `expected_seconds`, `target`, `step`.
    `exactness` is what is to stand beside its numbers, where they are not proven to be exact.
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
    prediction: Json | None = None
    error: str = ""
    exactness: str = ""


class Point(Answer):
    """Metrics after a step; null for one that was not a finite number."""

    step: int
    metrics: dict[str, float | None]


class LoggedPoint(Point):
    """What a trainer logged with `log` up to a step, as means since the point before; and the node it was training."""

    node: str = ""


class Failure(Answer):
    """What went wrong after a step: the traceback, or a sentence."""

    kind: str
    step: int
    error: str


class Note(Answer):
    """What somebody wrote down about a study or, where `trial` is a number, about that trial: by which event, when."""

    event: int
    time: float
    trial: int | None = None
    text: str


class TrialDetail(Trial):
    """A trial with its curve, and its nodes in the search plan, root first; `not_exact` as in a study."""

    asked: list[int] = []
    reason: Json = {}
    path: list[str] = []
    curve: list[Point] = []
    not_exact: list[str] = []
    notes: list[Note] = []
    failure: Failure | None = None
