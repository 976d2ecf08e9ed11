"""What may happen to a search plan. `app.events` stores what did.
These classes ARE the storage format: field names and meanings never change. A new shape is a new schema version with an
upcaster in `app.events.codec`. Few big facts (law 8): heartbeats are rows. Times are Unix seconds, steps absolute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.domain.artifacts import Artifact
from app.domain.artifacts import AuditEnded as AuditEnded
from app.domain.artifacts import AuditRequested as AuditRequested
from app.domain.artifacts import CheckpointCached as CheckpointCached
from app.domain.artifacts import CheckpointDropped as CheckpointDropped
from app.domain.artifacts import CheckpointKept as CheckpointKept
from app.domain.artifacts import CheckpointReleased as CheckpointReleased
from app.domain.artifacts import EnvironmentSeen as EnvironmentSeen
from app.domain.artifacts import Evaluated as Evaluated
from app.domain.artifacts import ExactnessLost as ExactnessLost
from app.domain.artifacts import ExactnessTested as ExactnessTested
from app.domain.artifacts import InputsSeen as InputsSeen
from app.domain.artifacts import Metrics as Metrics
from app.domain.artifacts import NeedsMore as NeedsMore
from app.domain.artifacts import PackingChosen as PackingChosen
from app.domain.artifacts import PackingProfiled as PackingProfiled
from app.domain.artifacts import Profile as Profile
from app.domain.artifacts import RanksProfiled as RanksProfiled
from app.domain.artifacts import StoredPart as StoredPart
from app.domain.artifacts import StudyDeleted as StudyDeleted
from app.domain.artifacts import StudyIsolated as StudyIsolated
from app.domain.artifacts import StudyStruck as StudyStruck
from app.domain.artifacts import WeightsDropped as WeightsDropped
from app.domain.averages import AverageNamed as AverageNamed
from app.domain.study_annotations import ConfigurationSuggested as ConfigurationSuggested
from app.domain.study_annotations import NoteAdded as NoteAdded
from app.domain.study_annotations import NoteCorrected as NoteCorrected
from app.domain.study_annotations import StudyLabelled as StudyLabelled
from app.domain.terms import ChainId, ChainOutcome, FailureKind, NodeId, StudyId, VerificationKind

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Train `node` from step `start` to step `end`, for `study`, evaluating after the steps in `evaluate`. Where these
    two are one step it trains nothing: it loads the checkpoint there and evaluates it."""

    node: NodeId
    start: int
    end: int
    study: StudyId
    evaluate: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOpened:
    """First event of every stream: what all studies on this plan have in common.

    determinism: as in `StudySpec`. shards, parallel: so, or `LAUNCHED`; 0: no batch is cut. packing: how many lanes its
    packs have; 0: each stage is trained alone; None: `PackingChosen` will say it. begin: of the weights that every
    trial begins with, the `sha256` of their file and whether all `state` in it is taken; None for the trainer's own.
    inputs: what tells each path that the trainer reads from another. project: nothing is shared beyond it.
    """

    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    determinism: str = "strict"
    packing: int | None = 0
    begin: Json | None = None
    inputs: list[Json] = field(default_factory=list)
    project: str = ""
    shards: int = 0
    parallel: str = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubmitted:
    """A study came in; `spec` is its validated study file.

    begin: where the weights come from that it begins with (`file`, or `study`, `trial` and `step`), and the object in
    the store that holds them (`key`, `sha256`, `size`). inputs: what was seen of each path then: `files`, `bytes`, a
    `stamp` of sizes and times and, where it is small, the `sha256` of the content; the `path` alone where only workers
    see it. other_files: changed files that they leave out. project: the plan's. by: its owner, or "".
    """

    study: StudyId
    spec: Json
    at: float
    begin: Json | None = None
    inputs: list[Json] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    project: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAdded:
    """A configuration is asked to train for `steps` steps. `reason` says who wanted it and why.

    path: the nodes it passes and where each begins, root first.
    data_seeds: the sequence that each of its repeats has beside `hp`, if any. repeats: the paths of all but the first.
    """

    study: StudyId
    trial: int
    hp: Json
    steps: int
    reason: Json = field(default_factory=dict)
    path: dict[NodeId, int]
    data_seeds: list[Json] = field(default_factory=list)
    repeats: list[dict[NodeId, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExtended:
    """The same trial is asked to train longer, to `steps` in all. path, repeats: the nodes that this adds to these."""

    study: StudyId
    trial: int
    steps: int
    reason: Json = field(default_factory=dict)
    path: dict[NodeId, int]
    repeats: list[dict[NodeId, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopped:
    """The tuner wants no more of this trial."""

    study: StudyId
    trial: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPrioritized:
    """The tuner says how urgent a trial is, among those of its study: 0 until then, and the higher the sooner."""

    study: StudyId
    trial: int
    priority: float
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCancelled:
    """A user wants no more of this trial."""

    study: StudyId
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRetried:
    """A user has a failed trial tried again, for all that it was asked for, as if it had never failed.

    Its tuner has gone on without it, and hears no more of it: what it decided remains as it is.
    """

    study: StudyId
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPaused:
    study: StudyId


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResumed:
    study: StudyId


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReopened:
    """A completed study goes on with another `spec`: the same search with more trials. What was decided stands."""

    study: StudyId
    spec: Json
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCancelled:
    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCompleted:
    """The tuner wants nothing more and every trial has come to an end.

    reason: what ended the study earlier (`by`: target, patience, max_time or a budget); empty where nothing did.
    """

    study: StudyId
    at: float
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFailed:
    """No trial of the study could be trained to a result, or its tuner broke; `error` says why."""

    study: StudyId
    error: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAssigned:
    """A path of stages was given to one slot: the first begins at a checkpoint or at step 0, the others follow.

    proof: what the chain is to prove, by training steps again that it adds nothing to; None where it trains new ones.
    members: the slots that are lent to it besides, in the order of its ranks. kind: the kind of device of them all,
    where there are any.
    """

    chain: ChainId
    slot: str
    stages: tuple[Stage, ...]
    at: float
    proof: VerificationKind | None = None
    members: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCompleted:
    """Stage number `index` of the chain reached its end; `seconds` of the slot's time were spent on it. peak_bytes: the
    most memory in use, of torch on the first device or, on a CPU, of the whole process; 0 if unknown, as of packs.
    shared_process: whether another chain had trained in its process before it, but those that trained its beginning."""

    chain: ChainId
    index: int
    seconds: float
    peak_bytes: int = 0
    shared_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEnded:
    """Nothing more comes from this chain; `outcome` says why. `steps` of the stage under way had been run until then,
    as far as is known, and `seconds` were spent on them. `died_alone`: whether the process that trained died while the
    worker that had started it lived on, which alone speaks against the stage.
    """

    chain: ChainId
    outcome: ChainOutcome
    steps: int = 0
    seconds: float = 0.0
    died_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The user's code failed while training past `step`, and the chain is over.
    `error` is the traceback. `signature` is equal for equal errors: the stage is tried again, until the same error at
    the same step has cost a trial's restarts (docs/decisions/0010-failures.md). Without one, there is no other try.
    `evaluated` is the step whose evaluation failed, which concerns only those who asked for it; None where training or
    saving did.
    """

    chain: ChainId
    index: int
    step: int
    kind: FailureKind
    error: str
    seconds: float
    signature: str | None = None
    evaluated: int | None = None


Event = (
    PlanOpened
    | StudySubmitted
    | AverageNamed
    | TrialAdded
    | TrialExtended
    | TrialStopped
    | TrialPrioritized
    | TrialCancelled
    | TrialRetried
    | StudyPaused
    | StudyResumed
    | StudyReopened
    | StudyCancelled
    | StudyCompleted
    | StudyFailed
    | ChainAssigned
    | StageCompleted
    | ChainEnded
    | StageFailed
    | Artifact
)
