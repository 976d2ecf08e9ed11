"""Studies: their settings, trials, history and counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.objectives import OBJECTIVE_FIELDS, Objectives, read_objectives
from app.domain.sampler_inputs import SUGGESTION, ConfigurationSuggested, ResultsLearned
from app.domain.search_plan.trial import Note, Trial, TrialEvent
from app.domain.terms import FINAL_STATES, InexactPolicy, NodeId, StateConflict, StudyId, StudyState, Unknown

MAX_RESTARTS, KEEP_BEST, AUDIT = 2, 1, 0.02
"""Defaults of a study."""


@dataclass(slots=True)
class Study:
    """One search by one tuner."""

    id: StudyId
    spec: dict[str, Any]
    submitted_at: float
    submitted_version: int = 1
    """The plan's version with the event that submitted the study. The study's events are counted from there."""
    state: StudyState = StudyState.RUNNING
    finished_at: float | None = None
    error: str | None = None
    ending: Mapping[str, Any] = field(default_factory=dict)
    """What ended the study before its tuner did, if anything."""
    trials: list[Trial] = field(default_factory=list)
    history: list[TrialEvent] = field(default_factory=list)
    """The events of its trials, in the order of the log."""
    max_step_by_node: dict[NodeId, int] = field(default_factory=dict)
    """The last requested step in each node. `unique` counts the steps up to there."""
    failed: list[int] = field(default_factory=list)
    """The numbers of the failed trials."""
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

    @property
    def name(self) -> str:
        return str(self.spec.get("name", ""))

    @property
    def metric(self) -> str:
        return str(self.spec.get("metric", ""))

    @property
    def mode(self) -> str:
        """`max` or `min`."""
        return str(self.spec.get("mode", ""))

    @property
    def objectives(self) -> Objectives:
        return read_objectives(self.spec)

    @property
    def value(self) -> str:
        """`last` or `best`: the result that a trial is ranked by."""
        return str(self.spec.get("value", "last"))

    @property
    def seed(self) -> int:
        return int(self.spec.get("seed", 0))

    @property
    def repeats(self) -> tuple[int, int | str]:
        """The number of repeats of each trial, and the step from which they differ, or `branch`."""
        repeats = self.spec.get("repeats", 1)
        return (repeats["seeds"], repeats["from"]) if isinstance(repeats, Mapping) else (repeats, 0)

    def trials_by_suggestion(self) -> dict[int, int]:
        """The numbers of the trials that took up suggestions, by the number of the suggestion."""
        return {trial.reason[SUGGESTION]: trial.number for trial in self.trials if SUGGESTION in trial.reason}

    def open_suggestions(self) -> tuple[int, ...]:
        """The numbers of the suggestions that are not withdrawn."""
        return tuple(number for number in range(len(self.suggestions)) if number not in self.withdrawn)

    @property
    def space(self) -> Mapping[str, Any] | None:
        """The search space; None if the study lists its configurations."""
        return self.spec.get("space") or None

    @property
    def runtime_args(self) -> Mapping[str, Any]:
        """The trainer's arguments that change no result."""
        arguments: Mapping[str, Any] = self.spec.get("runtime_args", {})
        return arguments

    @property
    def kind(self) -> str:
        """The kind of its tuner."""
        return str(self.tuner.get("kind", ""))

    @property
    def tuner(self) -> Mapping[str, Any]:
        """The tuner's fields in the study file: its `kind`, and the fields of that kind."""
        tuner: Mapping[str, Any] = self.spec.get("tuner", {})
        return tuner

    @property
    def max_steps(self) -> int | None:
        """Most steps of a trial; None if the tuner does not have a limit."""
        return self.tuner.get("max_steps")

    @property
    def eval_every(self) -> int | None:
        """Steps between regular evaluations; None to evaluate at requested steps only."""
        return self.spec.get("eval_every")

    @property
    def merges(self) -> bool:
        return bool(self.spec.get("merge", True))

    def root_of(self, trial: int, run: int = 0) -> str:
        """The parent in the id of a trial's first node: empty, or the trial's own name if the study does not merge."""
        if self.isolated:
            return self.isolated_root(trial, run)
        return "" if self.merges else f"{self.id}/{trial}{_repeat(run)}"

    def isolated_root(self, trial: int, run: int = 0) -> str:
        """The same for an isolated study."""
        return f"{self.id}/{trial}{_repeat(run)}/alone"

    @property
    def checks(self) -> bool:
        """Whether the trainer must pass a check before training."""
        return bool(self.spec.get("check", True))

    @property
    def audit(self) -> float:
        """The share of finished stages that idle slots train again for verification."""
        return float(self.spec.get("audit", AUDIT))

    @property
    def inexact(self) -> InexactPolicy:
        return InexactPolicy(self.spec.get("inexact", InexactPolicy.ALONE))

    def evaluates(self, step: int) -> bool:
        """Whether `eval_every` asks for an evaluation at this step."""
        return self.eval_every is not None and step % self.eval_every == 0

    def wall_seconds(self, now: float) -> float:
        """Seconds from the submission to the end, or to now, without the time before a reopening."""
        end = max(now, self.submitted_at) if self.finished_at is None else self.finished_at
        return max(0.0, end - self.submitted_at - self.idle_seconds)

    @property
    def priority(self) -> float:
        """The priority class. Slots go to the studies of the highest class first."""
        return float(self.spec.get("priority", 1))

    @property
    def weight(self) -> float:
        """The weight of its share of slots within its class."""
        return float(self.spec.get("weight", 1))

    @property
    def max_slots(self) -> int | None:
        """Most slots at once; None for any number."""
        most = self.spec.get("max_slots")
        return None if most is None else int(most)

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that may train the study. Empty for any; then a trial stays on its kind of GPU."""
        return tuple(self.spec.get("devices", ()))

    @property
    def least_ranks(self) -> int:
        """Fewest slots that train a stage together."""
        ranks = self.spec.get("ranks", 1)
        return int(ranks["least"] if isinstance(ranks, Mapping) else ranks)

    @property
    def most_ranks(self) -> int:
        """Most slots that train a stage together."""
        ranks = self.spec.get("ranks", 1)
        return int(ranks["most"] if isinstance(ranks, Mapping) else ranks)

    @property
    def max_restarts(self) -> int:
        """How often an error is tried again in a fresh process before the trial fails."""
        return int(self.spec.get("max_restarts", MAX_RESTARTS))

    @property
    def keep_best(self) -> int:
        """How many of the best trials keep their final state."""
        return int(self.spec.get("keep_best", KEEP_BEST))

    @property
    def keeps_states(self) -> bool:
        """Whether `keep_at` or `keep_every` keeps states of all trials."""
        return bool(self.spec.get("keep_at") or self.spec.get("keep_every"))

    @property
    def objective_fields(self) -> dict[str, Any]:
        """The fields of the study file that `objectives` is made of."""
        return {name: self.spec[name] for name in OBJECTIVE_FIELDS if self.spec.get(name)}

    @property
    def keeps_best_states(self) -> bool:
        """Whether a trial keeps its state after each new best result.

        Not with `keep_every`. Not with repeats either: no single run knows their mean. Not in isolated trials, since
        saving itself may change their results.
        """
        wants = self.value == "best" and self.keep_best > 0 and self.repeats[0] == 1
        return wants and not (self.is_final or self.isolated or self.spec.get("keep_every"))

    def kept_steps(self, node: NodeId, begin: int, end: int) -> set[int]:
        """The steps of a node in (begin, end] at which `keep_at` or `keep_every` keeps the state."""
        end, every = min(end, self.max_step_by_node.get(node, -1)), self.spec.get("keep_every")
        multiples = range(begin - begin % every + every, end + 1, every) if every else ()
        return {step for step in (*self.spec.get("keep_at", ()), *multiples) if begin < step <= end}

    @property
    def max_failures(self) -> int | None:
        """How many trials may fail before the study fails; None for any number."""
        most = self.spec.get("max_failures")
        return None if most is None else int(most)

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


def get_trial(study: Study, number: int) -> Trial:
    if not 0 <= number < len(study.trials):
        raise Unknown(f"study {study.id} has no trial {number}: it has {len(study.trials)}, counted from 0")
    return study.trials[number]


def _repeat(run: int) -> str:
    return f"/repeat {run}" if run else ""
