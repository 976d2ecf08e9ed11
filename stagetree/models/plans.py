"""The search plan, the stage tree, and what a plan was trained with."""

from __future__ import annotations

from pydantic import Field

from stagetree.models.answer import Answer, Json
from stagetree.models.trials import Point


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
