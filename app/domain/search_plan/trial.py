"""Trials, the runs in which they are trained, and the lines of their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.terms import NodeId, StudyId, TrialEventKind, TrialKey, TrialState
from stagetree.limits import DATA_SEED
from stagetree.sequences import last_change, parse

COOLDOWN_OF = "cooldown_of"
"""Key in the reason of a trial's start: the trial whose value at a rung this cooldown measures."""

MERGE_OF = "merge_of"
"""Key in the reason of a trial's start: the trial whose value at a rung this mean of its states measures."""

AVERAGE_OF = "average_of"
"""Key in the reason of a trial's start: the states, each with its weight, whose mean the trial begins with."""


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """One line of a study's history. Tuners see nothing else.

    `START`: a trial with the configuration `hp` must train for `steps`. `PROMOTE`: it is extended to `steps`. `STOP`:
    the tuner has stopped it. `PRIORITIZE`: its `priority` has changed. `RESULT`: its `metrics` after `steps`. `FAIL`
    and `CANCEL`: no result will come.
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
    """A configuration, its paths through the plan, and its requested steps."""

    study: StudyId
    number: int
    hp: dict[str, Any]
    reason: dict[str, Any]
    runs: tuple[TrialRun, ...] = ()
    """A single run, or repeats that differ in their `data_seed`. The trial's results are their means."""
    requested_steps: list[int] = field(default_factory=list)
    unevaluated: set[int] = field(default_factory=set)
    """Steps trained before the trial came that still need the evaluation of `eval_every`. They are not results, but the
    trial is not completed without them."""
    state: TrialState = TrialState.ACTIVE
    error: dict[str, Any] | None = None
    priority: float = 0.0
    """Set by the tuner, relative to the other trials of the study."""
    priority_reason: Mapping[str, Any] = field(default_factory=dict)
    is_retried: bool = False
    """Whether a user had the failed trial tried again. The tuner gets no further events of it."""

    @property
    def key(self) -> TrialKey:
        return (self.study, self.number)

    @property
    def path(self) -> list[NodeId]:
        """The path of the first run, whose states represent the trial."""
        return self.runs[0].path

    @property
    def steps(self) -> int:
        """The largest number of requested steps."""
        return self.requested_steps[-1]

    @property
    def cooldown_of(self) -> int | None:
        """For a cooldown, the trial that it branches off."""
        return self.reason.get(COOLDOWN_OF)

    @property
    def repeats_from(self) -> int:
        """The step from which its repeats differ: before it they are one training. 0 without repeats."""
        seeds = [parse(run.hp[DATA_SEED]) for run in self.runs] if len(self.runs) > 1 else []
        return max((last_change(seed) or 0 for seed in seeds), default=0)

    @property
    def merge_of(self) -> int | None:
        """For a merge, the trial whose states it averages."""
        return self.reason.get(MERGE_OF)

    @property
    def trunk(self) -> int | None:
        """For a cooldown or a merge, the trial whose value at a rung it measures."""
        return self.merge_of if self.cooldown_of is None else self.cooldown_of

    @property
    def passes(self) -> set[NodeId]:
        """The nodes on the paths of its runs."""
        return {name for run in self.runs for name in run.path}

    def run_through(self, node: NodeId) -> TrialRun:
        """The first run that passes the node, or else the first run."""
        return next((run for run in self.runs if node in run.path), self.runs[0])

    def single_runs(self) -> Iterator[Trial]:
        """The trial once for each run, as if it had no other."""
        return (replace(self, runs=(run,)) for run in self.runs) if len(self.runs) > 1 else iter((self,))


@dataclass(frozen=True, slots=True)
class Note:
    """A user's note on a study or on one of its trials."""

    version: int
    """The plan's version with the event that added it."""
    at: float
    trial: int | None
    text: str
    by: str = ""
    corrected_at: float | None = None
    """When its text was last replaced."""
