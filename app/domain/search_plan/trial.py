"""Trials, the runs in which they are trained, and the lines of their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.terms import NodeId, StudyId, TrialEventKind, TrialKey, TrialState

COOLDOWN_OF = "cooldown_of"
"""In the reason of a start: the trial of whose value at a rung this one is the measure."""


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """One line of a study's history, which is all that a tuner is told.

    kind: `START` (a trial was asked to train for `steps`), `PROMOTE` (the same trial is asked for more), `STOP` (no
    more of it is wanted), `PRIORITIZE` (it has this `priority` now), `RESULT` (its `metrics` after `steps`), `FAIL` or
    `CANCEL` (no result will come). `hp`: of a start, the configuration.
    """

    kind: TrialEventKind
    trial: int
    steps: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    reason: Mapping[str, Any] = field(default_factory=dict)
    hp: Mapping[str, Any] = field(default_factory=dict)
    priority: float = 0.0


@dataclass(slots=True)
class TrialRun:
    """One training of a trial: its hyper-parameters, and its path through the plan, which begins under `root`."""

    hp: Mapping[str, Any]
    root: str = ""
    path: list[NodeId] = field(default_factory=list)


@dataclass(slots=True)
class Trial:
    """A configuration asked to train: its path through the plan, the steps it was asked for, and how it stands.

    runs: one, or the repeats of it, which differ in their `data_seed`; its results are their means.
    unevaluated: steps that were trained before it came, whose state is kept and must be evaluated for its study's
    `eval_every`. They are no results: nothing depends on them but the end of the trial. priority, standing: how urgent
    its tuner says that it is among the trials of its study, and why, where it does. is_retried: whether it had failed
    and a user had it tried again; its tuner hears no more of it.
    """

    study: StudyId
    number: int
    hp: dict[str, Any]
    reason: dict[str, Any]
    runs: tuple[TrialRun, ...] = ()
    requested_steps: list[int] = field(default_factory=list)
    unevaluated: set[int] = field(default_factory=set)
    state: TrialState = TrialState.ACTIVE
    error: dict[str, Any] | None = None
    priority: float = 0.0
    priority_reason: Mapping[str, Any] = field(default_factory=dict)
    is_retried: bool = False

    @property
    def key(self) -> TrialKey:
        return (self.study, self.number)

    @property
    def path(self) -> list[NodeId]:
        """That of its first run, whose state stands for it."""
        return self.runs[0].path

    @property
    def steps(self) -> int:
        """The most steps it was asked for."""
        return self.requested_steps[-1]

    @property
    def cooldown_of(self) -> int | None:
        """The trial whose cooldown at a rung it is; None for all others."""
        return self.reason.get(COOLDOWN_OF)

    @property
    def passes(self) -> set[NodeId]:
        """The nodes on the way of any of its runs."""
        return {name for run in self.runs for name in run.path}

    def run_through(self, node: NodeId) -> TrialRun:
        """The first of its runs that passes a node; of one that none of them passes, the first run."""
        return next((run for run in self.runs if node in run.path), self.runs[0])

    def single_runs(self) -> Iterator[Trial]:
        """The trial with each of its runs, as if that were the only one."""
        return (replace(self, runs=(run,)) for run in self.runs) if len(self.runs) > 1 else iter((self,))


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody wrote at a time about a study, or about a trial of it. version: of the plan, with its event.

    corrected_at: when its text was last replaced, if it was.
    """

    version: int
    at: float
    trial: int | None
    text: str
    by: str = ""
    corrected_at: float | None = None
