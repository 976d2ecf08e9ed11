"""Studies: their settings, trials, history and counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.sampler_inputs import SUGGESTION, ConfigurationSuggested, ResultsLearned
from app.domain.search_plan.spec import StoredSpec
from app.domain.search_plan.trial import Note, Trial, TrialEvent
from app.domain.terms import FINAL_STATES, NodeId, StateConflict, StudyId, StudyState, Unknown


@dataclass(frozen=True, slots=True)
class TargetReached:
    """An evaluation between two results of a trial that is as good as the study's target. steps: after how many."""

    trial: int
    steps: int
    value: float


@dataclass(slots=True)
class Study:
    """One search by one tuner."""

    id: StudyId
    spec: StoredSpec
    submitted_at: float
    submitted_version: int = 1
    """The plan's version with the event that submitted the study. The study's events are counted from there."""
    state: StudyState = StudyState.RUNNING
    finished_at: float | None = None
    error: str | None = None
    failed_check: int | None = None
    """The trial with whose values the trainer failed its check. Its log has what the check printed."""
    ending: Mapping[str, Any] = field(default_factory=dict)
    """What ended the study before its tuner did, if anything."""
    trials: list[Trial] = field(default_factory=list)
    history: list[TrialEvent] = field(default_factory=list)
    """The events of its trials, in the order of the log."""
    max_step_by_node: dict[NodeId, int] = field(default_factory=dict)
    """The last requested step in each node. `unique` counts the steps up to there."""
    unmerged: dict[int, int] = field(default_factory=dict)
    """The rungs of the trials whose states there are still to be averaged, in steps, by trial."""
    failed: list[int] = field(default_factory=list)
    """The numbers of the failed trials."""
    target_reached: TargetReached | None = None
    """The first evaluation that reached the target; results that reach it are in the history."""
    notes: list[Note] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    suggestions: list[ConfigurationSuggested] = field(default_factory=list)
    """In the order in which the tuner takes them up."""
    withdrawn: dict[int, float] = field(default_factory=dict)
    """When a suggestion was withdrawn, by its number."""
    learned: list[ResultsLearned] = field(default_factory=list)
    """Results of other studies that the sampler starts from."""

    active: int = 0
    """Active trials."""
    num_results: int = 0
    requested: int = 0
    """Requested steps, counted for each trial."""
    unique: int = 0
    """Requested steps, counted once where trials share them."""
    executed: int = 0
    """Steps that were run for the study."""
    first: int = 0
    """Executed steps that were trained for the first time."""
    retried: int = 0
    """Executed steps that were trained again because the user's code raised before their state was kept."""
    lost: int = 0
    """Executed steps that were trained again because their state was lost with a worker."""
    struck: int = 0
    """Executed steps before the study was isolated."""
    proof_steps: int = 0
    """Verification steps."""
    gpu_seconds: float = 0.0
    used_slots: set[str] = field(default_factory=set)
    """The slots that have trained for the study."""
    paced_steps: int = 0
    """Steps of the stages whose timing shows how long a step takes: see `app.domain.evolve.chains`."""
    paced_seconds: float = 0.0
    """Seconds of these stages."""
    idle_seconds: float = 0.0
    """Time between an end of the study and its reopening."""

    deleted: bool = False
    """Deleted studies are not listed, and no state is kept for them."""
    isolated: str = ""
    """Why each trial is trained alone; empty if trials may share."""
    is_audited: bool = False
    """Whether a user has requested an audit that has not ended."""
    begin: dict[str, Any] | None = None  # as in `StudySubmitted`
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """As in `StudySubmitted`, or as the first slot saw them if the server does not see them."""
    other_inputs: list[str] = field(default_factory=list)
    """The paths of inputs that differed on a later slot."""
    other_files: list[str] = field(default_factory=list)  # as in `StudySubmitted`
    project: str = ""
    owner: str = ""
    """The principal who submitted the study; "" for none."""

    def trials_by_suggestion(self) -> dict[int, int]:
        """The numbers of the trials that took up suggestions, by the number of the suggestion."""
        return {trial.reason[SUGGESTION]: trial.number for trial in self.trials if SUGGESTION in trial.reason}

    def open_suggestions(self) -> tuple[int, ...]:
        """The numbers of the suggestions that are not withdrawn."""
        return tuple(number for number in range(len(self.suggestions)) if number not in self.withdrawn)

    def root_of(self, trial: int, run: int = 0) -> str:
        """The parent in the id of a trial's first node: empty, or the trial's own name if the study does not merge."""
        if self.isolated:
            return self.isolated_root(trial, run)
        return "" if self.spec.merge else f"{self.id}/{trial}{_repeat(run)}"

    def isolated_root(self, trial: int, run: int = 0) -> str:
        """The same for an isolated study."""
        return f"{self.id}/{trial}{_repeat(run)}/alone"

    def wall_seconds(self, now: float) -> float:
        """Seconds from the submission to the end, or to now, without the time before a reopening."""
        end = max(now, self.submitted_at) if self.finished_at is None else self.finished_at
        return max(0.0, end - self.submitted_at - self.idle_seconds)

    @property
    def keeps_best_states(self) -> bool:
        """Whether a trial keeps its state after each new best result.

        Not with `keep_every`. Not with repeats either: no single run knows their mean. Not in isolated trials, since
        saving itself may change their results.
        """
        spec = self.spec
        wants = spec.value == "best" and spec.keep_best > 0 and spec.repeats[0] == 1 and not spec.keep_every
        return wants and not (self.is_final or self.isolated)

    def kept_steps(self, node: NodeId, begin: int, end: int) -> set[int]:
        """The steps of a node in (begin, end] at which `keep_at` or `keep_every` keeps the state."""
        end, every = min(end, self.max_step_by_node.get(node, -1)), self.spec.keep_every
        multiples = range(begin - begin % every + every, end + 1, every) if every else ()
        return {step for step in (*self.spec.keep_at, *multiples) if begin < step <= end}

    @property
    def is_running(self) -> bool:
        return self.state == StudyState.RUNNING

    @property
    def can_be_verified(self) -> bool:
        """Whether verification steps may be run for the study."""
        return (self.is_running or self.is_audited) and not self.isolated

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


def require_open(study: Study) -> Study:
    if study.is_final:
        raise StateConflict(f"study {study.id} is {study.state} and cannot be changed any more")
    return study


def _numbers(count: int) -> str:
    """The numbers of `count` trials, in words."""
    return {0: "none yet", 1: "trial 0 alone", 2: "trials 0 and 1"}.get(count, f"trials 0 to {count - 1}")


def get_trial(study: Study, number: int) -> Trial:
    if not 0 <= number < len(study.trials):
        raise Unknown(f"study {study.id} has no trial {number}: it has {_numbers(len(study.trials))}")
    return study.trials[number]


def _repeat(run: int) -> str:
    return f"/repeat {run}" if run else ""
