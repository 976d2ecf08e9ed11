"""What training leaves behind and what it was done with, as events: metrics, checkpoints, how exact it was, inputs.

And what people delete of it. See `app.domain.events`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.domain.study_annotations import Annotation
from app.domain.terms import ChainId, NodeId, StudyId, VerificationKind

Metrics = dict[str, float | None]
"""Named numbers; None for one that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics of the model at a step: a named vector, whatever a tuner makes of it."""

    node: NodeId
    step: int
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An object of the store that holds one rank's part of a state: its size, and its hash."""

    key: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    """The state at a step is safe under `key`; what no event names does not exist.

    `intermediate`: it was kept inside a stage, because that was cheap: somebody may branch there, or the worker die.
    parts: the objects of the other ranks, where it is divided: it is all of them, or it is lost. size: of
    all. sha256: of the object under `key`. looked: whether that holds what the trainer held besides its state, too.
    """

    node: NodeId
    step: int
    key: str
    sha256: str
    size: int
    intermediate: bool = False
    parts: tuple[StoredPart, ...] = ()
    looked: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all its objects."""
        return (self.key, *(part.key for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCached:
    """The state at a stage's end is on a disk of `host`, for its slots, until `CheckpointKept` says that it is safe."""

    node: NodeId
    step: int
    key: str
    sha256: str
    size: int
    host: str
    parts: tuple[StoredPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReleased:
    """Nothing begins any more with the state at a step, so it may be deleted. `CheckpointDropped` says that it was."""

    node: NodeId
    step: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped:
    """The state at a step is gone or could not be read; `reason` says which."""

    node: NodeId
    step: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessLost:
    """What a stage trained or measured in `node`, up to `step` and further, may differ from a training alone.

    `reason` is in words that follow "3 stages": went on under another torch (2.13.0 after 2.12.0).
    """

    node: NodeId
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessTested:
    """States of the same steps that were trained in two ways were compared, leaf by leaf, and the metrics with them.

    chain: which did it, by its `proof`. device: the kind it ran on. node, step: where both ways ended. begin: the step
    at which the second way began anew, from a checkpoint or, at 0, from nothing. since: the same of the first way.
    difference: the first leaf or metric that differs and the likely cause, in a sentence; empty where all bits are
    equal. stray: attributes of the trainer that do not come back with its state, each in words that follow its name.
    unproven: why nothing could be compared, in words that follow a colon; empty where it was. unread: of a `CHECK`, the
    hyper-parameters that none of its steps has read. files: of a `CHECK`, a record of each data file that
    the trainer has read, as of `StudySubmitted.inputs`. A `CHECK` that failed in the user's code is a `StageFailed`.
    goes_on: of a `CHECK`, that the trainer can be trained and its state be loaded; what is compared follows.
    """

    chain: ChainId
    proof: VerificationKind
    device: str
    node: NodeId
    begin: int
    step: int
    since: int = 0
    difference: str = ""
    stray: dict[str, str] = field(default_factory=dict)
    unproven: str = ""
    unread: list[str] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIsolated:
    """From here on each trial of the study is trained alone, from step 0, in a process of its own and without a break.

    The trainer is not exact: `reason` says why. What the study had is struck, and its tuner begins anew.
    """

    study: StudyId
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequested:
    """A user asks for proof of all that the study shares, whatever that costs."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEnded:
    """Everything that could be compared of an audited study was compared; the verdict is in `ExactnessTested`."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingProfiled:
    """How packs of the plan's models do on a kind of device, seen before or where the first one was trained.

    batch_seconds: of one batch, by how many lanes a pack has, for the plan's width and the powers of two below it, as
    far as they were measured; "0" is one model alone. Optimizers are left out of all. peak_bytes: the most that is in
    use on the device meanwhile, the same way; nothing on a CPU. exact: whether a model of a pack of the plan's width
    was found to have the gradients, to the bit, that it has alone. refusal: why they cannot be packed; then nothing
    else is known. batch: the hyper-parameters that decided which batch it was. other_draws: the first module that draws
    other random numbers in a pack than alone, by its name in the model; empty where none does.
    """

    device: str
    batch_seconds: dict[str, float]
    peak_bytes: dict[str, int]
    refusal: str = ""
    exact: bool = False
    batch: dict[str, Any] | None = None
    other_draws: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingChosen:
    """How many lanes the packs of a plan have that was opened without a width; 0: each stage is trained alone.

    `reason` is in words that follow a colon.
    """

    width: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksProfiled:
    """How long a step of the plan's models takes on several devices of a kind, seen here or in another plan.

    step_seconds: by how many ranks train it, for the powers of two that were measured, 1 among them unless so few have
    too little memory. batch: the hyper-parameters that decided how large its batch was. refusal: why several cannot
    train it; then nothing else is known.
    """

    kind: str
    step_seconds: dict[str, float]
    batch: dict[str, Any]
    refusal: str = ""


Profile = TypeVar("Profile", PackingProfiled, RanksProfiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsMore:
    """A stage in `node` was out of memory, past `step`, on so many devices of a kind: it is tried with twice as many.

    So are others whose batches are as large; batch: the hyper-parameters that decide it. A trial that may have no more
    devices has failed instead.
    """

    node: NodeId
    step: int
    kind: str
    ranks: int
    batch: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsSeen:
    """What a slot saw of a study's inputs, which the server does not see: see `StudySubmitted`.

    Where a later slot sees something else, the study's results say so.
    """

    study: StudyId
    inputs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSeen:
    """What the plan is trained with on a kind of device, as a slot saw it that was the first to train there.

    environment: `python`, `torch`, `driver`, `packages` (version by name), and of the folder of the trainer's code its
    `commit` and the `diff` to it. It is bounded; `diff_sha256` is that of the whole.
    """

    device: str
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDropped:
    """The object with the weights that studies began with is deleted: all of these studies are."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDeleted:
    """A study that is over is not listed any more, and nothing is kept for it. What it found stays with its nodes."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStruck:
    """An operator struck the study: it harms the others. No event of it is folded, earlier ones neither."""

    study: StudyId
    reason: str
    at: float


Artifact = (
    Evaluated
    | CheckpointKept
    | CheckpointCached
    | CheckpointReleased
    | CheckpointDropped
    | ExactnessLost
    | ExactnessTested
    | StudyIsolated
    | AuditRequested
    | AuditEnded
    | PackingProfiled
    | PackingChosen
    | RanksProfiled
    | NeedsMore
    | InputsSeen
    | EnvironmentSeen
    | WeightsDropped
    | StudyDeleted
    | StudyStruck
    | Annotation
)
