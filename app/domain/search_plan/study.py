"""Studies, and how to come by one and its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.objectives import OBJECTIVE_FIELDS, Objectives, objectives_of
from app.domain.search_plan.trial import Note, Trial, TrialEvent
from app.domain.study_annotations import SUGGESTION, ConfigurationSuggested, ResultsLearned
from app.domain.terms import FINAL_STATES, InexactPolicy, NodeId, StateConflict, StudyId, StudyState, Unknown

MAX_RESTARTS, KEEP_BEST, AUDIT = 2, 1, 0.02
"""Of a study that does not say."""


@dataclass(slots=True)
class Study:
    """One search by one tuner.

    max_step_by_node: the last step that its trials asked for in each node they pass: what "unique" counts.
    history: what happened to its trials, in the order of the log. failed: the numbers of the trials that did.
    executed: the steps that were run for it. first: those of them that nobody had trained before. retried, lost: those
    that were trained again because the state behind them was lost by an error of the user's code, or with a worker.
    struck: those before it was isolated. idle_seconds: from each end of it until it was reopened. suggestions: in the
    order in which its tuner takes them up. withdrawn: when, by the number of a suggestion. learned: from other studies.
    submitted_version: of the plan, with the event that submitted it: what happened to the study is counted from there.
    ending: what ended it before its tuner did; empty where nothing did. deleted: it is not listed any more, and
    nothing is kept for it. isolated: why each of its trials is trained alone; empty where they may share.
    used_slots: the slots that have trained for it. paced_steps, paced_seconds: of the stages that tell how long a step
    takes, see `app.domain.evolve.chains`.
    is_audited: whether a user wants all of it proven, and it is not yet. proof_steps: trained again for it, to compare.
    begin, inputs, other_files: as in `StudySubmitted`; of inputs that the server does not see, what the first slot saw.
    other_inputs: the paths of those of which a later slot saw something else.
    project: that of the plan. owner: the principal that submitted it; "" for none. tags, attributes: what people label
    it with.
    """

    id: StudyId
    spec: dict[str, Any]
    submitted_at: float
    submitted_version: int = 1
    state: StudyState = StudyState.RUNNING
    finished_at: float | None = None
    error: str | None = None
    ending: Mapping[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    history: list[TrialEvent] = field(default_factory=list)
    max_step_by_node: dict[NodeId, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    suggestions: list[ConfigurationSuggested] = field(default_factory=list)
    withdrawn: dict[int, float] = field(default_factory=dict)
    learned: list[ResultsLearned] = field(default_factory=list)
    active: int = 0
    num_results: int = 0
    requested: int = 0
    unique: int = 0
    executed: int = 0
    first: int = 0
    retried: int = 0
    lost: int = 0
    struck: int = 0
    gpu_seconds: float = 0.0
    used_slots: set[str] = field(default_factory=set)
    paced_steps: int = 0
    paced_seconds: float = 0.0
    idle_seconds: float = 0.0
    deleted: bool = False
    isolated: str = ""
    is_audited: bool = False
    proof_steps: int = 0
    begin: dict[str, Any] | None = None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    other_inputs: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    project: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        return str(self.spec.get("name", ""))

    @property
    def metric(self) -> str:
        """The name of the metric that it is about."""
        return str(self.spec.get("metric", ""))

    @property
    def mode(self) -> str:
        """`max` or `min`: which values of the metric are better."""
        return str(self.spec.get("mode", ""))

    @property
    def objectives(self) -> Objectives:
        """All that it wants of a result."""
        return objectives_of(self.spec)

    @property
    def value(self) -> str:
        """`last` or `best`: which of its results a trial is judged by."""
        return str(self.spec.get("value", "last"))

    @property
    def seed(self) -> int:
        """Of the plan, and of the data where no `data_seed` says otherwise."""
        return int(self.spec.get("seed", 0))

    @property
    def repeats(self) -> tuple[int, int | str]:
        """How often each trial is trained, and the step from which on the repeats differ, or `branch`."""
        repeats = self.spec.get("repeats", 1)
        return (repeats["seeds"], repeats["from"]) if isinstance(repeats, Mapping) else (repeats, 0)

    def trials_by_suggestion(self) -> dict[int, int]:
        """The trials that came of suggestions, by the number of the suggestion."""
        return {trial.reason[SUGGESTION]: trial.number for trial in self.trials if SUGGESTION in trial.reason}

    def open_suggestions(self) -> tuple[int, ...]:
        """The numbers of the suggestions that are not withdrawn, in the order in which they are taken up."""
        return tuple(number for number in range(len(self.suggestions)) if number not in self.withdrawn)

    @property
    def space(self) -> Mapping[str, Any] | None:
        """What its configurations are drawn from; None where it lists them."""
        return self.spec.get("space") or None

    @property
    def runtime_args(self) -> Mapping[str, Any]:
        """The trainer's arguments that change no result."""
        arguments: Mapping[str, Any] = self.spec.get("runtime_args", {})
        return arguments

    @property
    def kind(self) -> str:
        """That of its tuner."""
        return str(self.tuner.get("kind", ""))

    @property
    def tuner(self) -> Mapping[str, Any]:
        """What its file says of the tuner: `kind`, and the fields of that kind."""
        tuner: Mapping[str, Any] = self.spec.get("tuner", {})
        return tuner

    @property
    def max_steps(self) -> int | None:
        """The most steps that its tuner asks of a trial; None where it does not say."""
        return self.tuner.get("max_steps")

    @property
    def eval_every(self) -> int | None:
        """The steps between evaluations, besides those at which its tuner asks for a result; None for no others."""
        return self.spec.get("eval_every")

    @property
    def merges(self) -> bool:
        return bool(self.spec.get("merge", True))

    def root_of(self, trial: int, run: int = 0) -> str:
        """What its first node is named after: nothing, or the trial itself where the study does not merge."""
        if self.isolated:
            return self.root_alone(trial, run)
        return "" if self.merges else f"{self.id}/{trial}{_repeat(run)}"

    def root_alone(self, trial: int, run: int = 0) -> str:
        """The same once it is isolated."""
        return f"{self.id}/{trial}{_repeat(run)}/alone"

    @property
    def checks(self) -> bool:
        """Whether its trainer must be tried before anything is trained."""
        return bool(self.spec.get("check", True))

    @property
    def audit(self) -> float:
        """The share of its finished stages that is trained again by slots with nothing else to do."""
        return float(self.spec.get("audit", AUDIT))

    @property
    def inexact(self) -> InexactPolicy:
        """What it wants of a trainer that is not exact."""
        return InexactPolicy(self.spec.get("inexact", InexactPolicy.ALONE))

    def evaluates(self, step: int) -> bool:
        """Whether its `eval_every` asks for an evaluation at this step."""
        return self.eval_every is not None and step % self.eval_every == 0

    def wall_seconds(self, now: float) -> float:
        """From the submission to the end, or to now, without the time in which it was over before it was reopened."""
        end = max(now, self.submitted_at) if self.finished_at is None else self.finished_at
        return max(0.0, end - self.submitted_at - self.idle_seconds)

    @property
    def priority(self) -> float:
        """Its class: slots are divided among the studies of the highest first."""
        return float(self.spec.get("priority", 1))

    @property
    def weight(self) -> float:
        """Its share of the slots, against the others of its class."""
        return float(self.spec.get("weight", 1))

    @property
    def max_slots(self) -> int | None:
        """The most slots that it has at once; None for any number."""
        most = self.spec.get("max_slots")
        return None if most is None else int(most)

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that train its stages; none for any, but then a trial keeps to its kind of GPU."""
        return tuple(self.spec.get("devices", ()))

    @property
    def least_ranks(self) -> int:
        """How many slots train each of its stages at least."""
        ranks = self.spec.get("ranks", 1)
        return int(ranks["least"] if isinstance(ranks, Mapping) else ranks)

    @property
    def most_ranks(self) -> int:
        """How many slots train one of its stages at most."""
        ranks = self.spec.get("ranks", 1)
        return int(ranks["most"] if isinstance(ranks, Mapping) else ranks)

    @property
    def max_restarts(self) -> int:
        """How often an error at one step is tried again in a fresh process before it fails a trial."""
        return int(self.spec.get("max_restarts", MAX_RESTARTS))

    @property
    def keep_best(self) -> int:
        """Of how many of its best trials the final state is kept."""
        return int(self.spec.get("keep_best", KEEP_BEST))

    @property
    def keeps_states(self) -> bool:
        """Whether it wants states of its trials kept for good, not only of the best."""
        return bool(self.spec.get("keep_at") or self.spec.get("keep_every"))

    @property
    def objective_fields(self) -> dict[str, Any]:
        """The fields of its file that say what a good result is."""
        return {name: self.spec[name] for name in OBJECTIVE_FIELDS if self.spec.get(name)}

    @property
    def keeps_best_states(self) -> bool:
        """Whether the state is kept where a result on a trial's way is its best so far, unless `keep_every` says when.

        Of repeats, the best result is that of their means, of which none of them knows. Where trials are isolated,
        saving itself may change their results.
        """
        wants = self.value == "best" and self.keep_best > 0 and self.repeats[0] == 1
        return wants and not (self.is_final or self.isolated or self.spec.get("keep_every"))

    def kept_steps(self, node: NodeId, begin: int, end: int) -> set[int]:
        """The steps of a node behind `begin`, up to `end`, at which it wants that, if its trials come there."""
        end, every = min(end, self.max_step_by_node.get(node, -1)), self.spec.get("keep_every")
        multiples = range(begin - begin % every + every, end + 1, every) if every else ()
        return {step for step in (*self.spec.get("keep_at", ()), *multiples) if begin < step <= end}

    @property
    def max_failures(self) -> int | None:
        """How many of its trials may fail before the study does; None for any number."""
        most = self.spec.get("max_failures")
        return None if most is None else int(most)

    @property
    def is_running(self) -> bool:
        return self.state == StudyState.RUNNING

    @property
    def can_be_verified(self) -> bool:
        """Whether steps may be trained again for it, to compare."""
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
