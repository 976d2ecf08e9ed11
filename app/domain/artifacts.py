"""The events about results of training: metrics, checkpoints, comparisons, measurements, their deletion, and notes.

See `app.domain.events` for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.domain.sampler_inputs import SamplerInput
from app.domain.terms import ChainId, NodeId, StudyId, VerificationKind

Metrics = dict[str, float | None]
"""Named numbers; None for one that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics of the model at a step."""

    node: NodeId
    step: int
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An object of the store with one rank's part of a state."""

    key: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    """The state at a step is stored under `key`. Objects that no event names do not count as stored."""

    node: NodeId
    step: int
    key: str
    sha256: str
    """The hash of the object under `key`."""
    size: int
    """The size of all objects."""
    intermediate: bool = False
    """Whether it was saved inside a stage because that was cheap, in case a trial branches there or a worker dies."""
    parts: tuple[StoredPart, ...] = ()
    """The objects of the other ranks, if the state is divided. It is lost if one of them is."""
    looked: bool = False
    """Whether the object also holds attributes of the trainer beside its state."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all its objects."""
        return (self.key, *(part.key for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCached:
    """The state at a stage's end is on a disk of `host`, for the slots there, until `CheckpointKept` follows."""

    node: NodeId
    step: int
    key: str
    sha256: str
    size: int
    host: str
    parts: tuple[StoredPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReleased:
    """The state at a step is no longer needed and may be deleted. `CheckpointDropped` follows when it is."""

    node: NodeId
    step: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped:
    """The state at a step was deleted or could not be read; `reason` says which."""

    node: NodeId
    step: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessLost:
    """Results of a stage in `node`, from `step` on, may differ from results of a trial that is trained alone.

    `reason` follows "3 stages", for example: resumed under another torch (2.13.0 after 2.12.0).
    """

    node: NodeId
    step: int
    reason: str


WITHOUT_PACK = "trained without their pack, which had failed"
"""The reason of `ExactnessLost` for stages whose pack failed. Training alone may give other last bits than a pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessTested:
    """A chain trained steps again and compared states and metrics, leaf by leaf.

    A `CHECK` that failed in the user's code is a `StageFailed` instead.
    """

    chain: ChainId
    proof: VerificationKind
    device: str
    """The kind of device that it ran on."""
    node: NodeId
    begin: int
    """The step where the second training began, from a checkpoint or, at 0, from the start."""
    step: int
    """Where both trainings ended, in `node`."""
    since: int = 0
    """The step where the first training began."""
    difference: str = ""
    """The first leaf or metric that differs and the likely cause, in a sentence; empty if all bits are equal."""
    stray: dict[str, str] = field(default_factory=dict)
    """Attributes of the trainer that its state does not restore, each with words that follow its name."""
    unproven: str = ""
    """Why nothing could be compared, in words that follow a colon; empty if something was."""
    unread: list[str] = field(default_factory=list)
    """Hyper-parameters that no step of a `CHECK` has read."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Records of the data files that a `CHECK` has read, as in `StudySubmitted.inputs`."""
    goes_on: bool = False
    """First result of a `CHECK`: the trainer trains and loads its state. The comparison follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIsolated:
    """The trainer is not exact, so the study starts again with isolated trials.

    Each is trained from step 0 in a process of its own, without a break. Earlier results of the study are struck.
    """

    study: StudyId
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequested:
    """A user requested the verification of everything that the study shares."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEnded:
    """An audit is complete. Its comparisons are `ExactnessTested` events."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingProfiled:
    """A measurement of packs of the plan's models on a kind of device."""

    device: str
    batch_seconds: dict[str, float]
    """Seconds a batch, without the optimizer, by lanes: the plan's width and the powers of two below it; "0" is one
    model alone."""
    peak_bytes: dict[str, int]
    """Peak memory on the device, by lanes; empty on a CPU."""
    refusal: str = ""
    """Why the models cannot be packed. The other fields are then empty."""
    exact: bool = False
    """Whether a model had bitwise equal gradients alone and in a pack of the plan's width."""
    batch: dict[str, Any] | None = None
    """The hyper-parameters that decided the batch."""
    other_draws: str = ""
    """The first module, by name, that draws different random numbers in a pack than alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingChosen:
    """The lanes of the packs of a plan that was opened without a width; 0: each stage is trained alone.

    `reason` is in words that follow a colon.
    """

    width: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksProfiled:
    """A measurement of the plan's models on several devices of a kind."""

    kind: str
    step_seconds: dict[str, float]
    """By number of ranks, for powers of two from 1 on, or from the first that has enough memory."""
    batch: dict[str, Any]
    """The hyper-parameters that decided the batch size."""
    refusal: str = ""
    """Why several devices cannot train the models. The other fields are then empty."""


Profile = TypeVar("Profile", PackingProfiled, RanksProfiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsMore:
    """A stage in `node` ran out of memory after `step` on `ranks` devices of a kind.

    It is tried with twice as many, and so are stages whose `batch` is as large. A trial that cannot have more devices
    fails instead.
    """

    node: NodeId
    step: int
    kind: str
    ranks: int
    batch: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsSeen:
    """Records of a study's inputs from a slot, if the server does not see them: see `StudySubmitted`.

    If a later slot sees different inputs, the study's results are marked.
    """

    study: StudyId
    inputs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSeen:
    """The environment of the first slot that trained the plan on a kind of device."""

    device: str
    environment: dict[str, Any]
    """`python`, `torch`, `driver`, `packages` (versions by name), and the `commit` and `diff` of the trainer's folder.
    The diff is cut; `diff_sha256` is the hash of all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDropped:
    """The object with initial weights is deleted, as are all studies that began with it."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDeleted:
    """A study was deleted. Metrics stay with the nodes of the plan."""

    study: StudyId
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStruck:
    """An operator struck the study because it harms the others. None of its events is folded, not even earlier ones."""

    study: StudyId
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAdded:
    """A user wrote a note on a study, or on one of its trials."""

    study: StudyId
    trial: int | None
    """None for a note on the study."""
    text: str
    at: float
    by: str = ""
    """The principal; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCorrected:
    """The text of a note was replaced. The log keeps both texts."""

    study: StudyId
    note: int
    """Its number in the study, from 0."""
    text: str
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLabelled:
    study: StudyId
    tags: list[str]
    """All tags that the study has now."""
    attributes: dict[str, Any]
    """The changed values by name; None removes one."""
    at: float
    by: str = ""


Annotation = NoteAdded | NoteCorrected | StudyLabelled
"""Notes, tags and attributes of a study. No decision depends on them."""

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
    | SamplerInput
)
