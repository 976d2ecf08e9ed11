"""The search plan and the stage tree."""

from __future__ import annotations

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
