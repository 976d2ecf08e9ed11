"""The events of a search plan. `app.events` stores them.

These classes are the storage format: names and meanings of fields never change. A new shape is a new schema version
with an upcaster in `app.events.codec`. Events are few and large (law 8), so heartbeats are rows and not events. Times
are Unix seconds, steps are absolute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.domain.artifacts import WITHOUT_PACK as WITHOUT_PACK
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
from app.domain.artifacts import NoteAdded as NoteAdded
from app.domain.artifacts import NoteCorrected as NoteCorrected
from app.domain.artifacts import PackingChosen as PackingChosen
from app.domain.artifacts import PackingProfiled as PackingProfiled
from app.domain.artifacts import Profile as Profile
from app.domain.artifacts import RanksProfiled as RanksProfiled
from app.domain.artifacts import StoredPart as StoredPart
from app.domain.artifacts import StudyDeleted as StudyDeleted
from app.domain.artifacts import StudyIsolated as StudyIsolated
from app.domain.artifacts import StudyLabelled as StudyLabelled
from app.domain.artifacts import StudyStruck as StudyStruck
from app.domain.artifacts import WeightsDropped as WeightsDropped
from app.domain.sampler_inputs import ConfigurationSuggested as ConfigurationSuggested
from app.domain.terms import ChainId, ChainOutcome, FailureKind, NodeId, StudyId, VerificationKind

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Train `node` from step `start` to step `end`, charged to `study`, and evaluate after the steps in `evaluate`.

    If `start` equals `end`, the stage only loads the checkpoint there and evaluates it.
    """

    node: NodeId
    start: int
    end: int
    study: StudyId
    evaluate: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOpened:
    """The first event of every stream: what all studies on this plan have in common."""

    trainer: str
    trainer_version: str
    trainer_args: Json
    seed: int
    determinism: str = "strict"
    """As in `StudySpec`."""
    packing: int | None = 0
    """Lanes of a pack; 0: each stage is trained alone; None: `PackingChosen` will follow."""
    begin: Json | None = None
    """Initial weights: the `sha256` of their file, and whether to take all `state` in it. None: the trainer's own."""
    inputs: list[Json] = field(default_factory=list)
    """A fingerprint of each path that the trainer reads."""
    project: str = ""
    """Studies of different projects share nothing."""
    shards: int = 0
    """As in `StudySpec`; 0: batches are not sharded."""
    parallel: str = "tree"
    """As in `StudySpec`, or `LAUNCHED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubmitted:
    """A study was submitted."""

    study: StudyId
    spec: Json
    """The validated study file."""
    at: float
    begin: Json | None = None
    """Where the initial weights come from (`file`, or `study`, `trial` and `step`), and the object that holds them
    (`key`, `sha256`, `size`)."""
    inputs: list[Json] = field(default_factory=list)
    """A record of each input: `path`, `files`, `bytes`, a `stamp` of sizes and times and, for small ones, the `sha256`
    of the content. Only the `path` if the server does not see it."""
    other_files: list[str] = field(default_factory=list)
    """Files that the trainer reads, that `inputs` does not name, and that have changed."""
    project: str = ""
    by: str = ""
    """The owner."""


class MeanShare(NamedTuple):
    """The state of a node after a step, as one term of an average, and its weight."""

    node: NodeId
    step: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageNamed:
    """A node begins after `step` with the mean of other states: see `app.domain.decide.averages`.

    Its name is a hash of these states, so equal averages are one node.
    """

    node: NodeId
    step: int
    shares: tuple[MeanShare, ...]
    """In the order in which they are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAdded:
    """A trial was added, to be trained for `steps` steps.

    The names of its nodes are recorded, not derived again when the log is read: a name is a hash of what today's code
    makes of a sequence, so a later canonical form, or another mathematics library, would give other names. A later
    version may name nodes in another way: then new trials share less with old ones, and nothing breaks.
    """

    study: StudyId
    trial: int
    hp: Json
    steps: int
    reason: Json = field(default_factory=dict)
    """Who added it, and why."""
    path: dict[NodeId, int]
    """The nodes that it passes and where each begins, root first."""
    data_seeds: list[Json] = field(default_factory=list)
    """The sequence of `data_seed` for each repeat, if there are any."""
    repeats: list[dict[NodeId, int]] = field(default_factory=list)
    """The paths of all repeats except the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExtended:
    """A trial was extended to `steps` steps in total."""

    study: StudyId
    trial: int
    steps: int
    reason: Json = field(default_factory=dict)
    path: dict[NodeId, int]
    """The nodes that this adds to the trial's path."""
    repeats: list[dict[NodeId, int]] = field(default_factory=list)
    """The same for the other repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopped:
    """The tuner stopped a trial."""

    study: StudyId
    trial: int
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPrioritized:
    """The tuner ranked a trial within its study. Higher priorities run first; the default is 0."""

    study: StudyId
    trial: int
    priority: float
    reason: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCancelled:
    """A user cancelled a trial."""

    study: StudyId
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRetried:
    """A user had a failed trial tried again, for all its requested steps.

    Its tuner gets no further events of it, so decisions that it made without the trial stay as they are.
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
    """A study that had ended continues with another `spec`. Earlier decisions stay."""

    study: StudyId
    spec: Json
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCancelled:
    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCompleted:
    """The tuner is done and every trial has ended."""

    study: StudyId
    at: float
    reason: Json = field(default_factory=dict)
    """What ended the study before that (`by`: target, patience, max_time or a budget), if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFailed:
    """The study failed, for example because no trial has a result; `error` says why."""

    study: StudyId
    error: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAssigned:
    """A slot was given stages to train in a row. The first begins at a checkpoint or at step 0."""

    chain: ChainId
    slot: str
    stages: tuple[Stage, ...]
    at: float
    proof: VerificationKind | None = None
    """For a chain that trains steps again to verify them; None for training."""
    members: tuple[str, ...] = ()
    """The slots lent to the chain, in the order of its ranks."""
    kind: str = ""
    """The kind of device of all these slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCompleted:
    """Stage number `index` of the chain reached its end."""

    chain: ChainId
    index: int
    seconds: float
    """The slot's time that it took."""
    peak_bytes: int = 0
    """Peak memory of torch on the first device or, on a CPU, of the process; 0 if unknown, as in packs."""
    shared_process: bool = False
    """Whether an unrelated chain had trained in its process before: not one that trained the stage's beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEnded:
    """A chain ended."""

    chain: ChainId
    outcome: ChainOutcome
    steps: int = 0
    """Steps of the current stage that were run, according to the worker's last report."""
    seconds: float = 0.0
    """Time spent on them."""
    died_alone: bool = False
    """Whether the training process died while its worker lived on. Only this suggests that the stage is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The user's code failed, and the chain ended."""

    chain: ChainId
    index: int
    step: int
    """The last step before the error."""
    kind: FailureKind
    error: str
    """The traceback."""
    seconds: float
    signature: str | None = None
    """Equal for equal errors. The stage is tried again until the same error at the same step has used up a trial's
    restarts (docs/decisions/0010-failures.md). Without a signature it is not tried again."""
    evaluated: int | None = None
    """The step whose evaluation failed, which affects only trials that requested it; None if training or saving did."""


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
