"""What training leaves behind and what it was done with, as events: metrics, checkpoints, what is not exact, inputs.

See `app.domain.events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.ids import NodeId, StudyId

Metrics = dict[str, float | None]
"""Named numbers; None for one that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics of the model at a step: a named vector, whatever a tuner makes of it."""

    node: NodeId
    step: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    """The state at a step is safe under `key`; what no event names does not exist.

    `intermediate`: it was kept inside a stage, because that was cheap: somebody may branch there, or the worker die.
    """

    node: NodeId
    step: int
    key: str
    sha256: str
    size: int
    intermediate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReleased:
    """Nothing begins any more with the state at a step, so it may be deleted. `CheckpointDropped` says that it was."""

    node: NodeId
    step: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped:
    """The state at a step is gone, could not be read, or could not be written (no `key`); `reason` says which."""

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
class PackingProfiled:
    """How packs of the plan's models do on a kind of device, seen before or where the first one was trained.

    batch_seconds: of one batch, by how many lanes a pack has, for the plan's width and the powers of two below it, as
    far as they were measured; "0" is one model alone. Optimizers are left out of all. peak_bytes: the most that is in
    use on the device meanwhile, the same way; nothing on a CPU. exact: whether a model of a pack of the plan's width
    was found to have the gradients, to the bit, that it has alone. refusal: why they cannot be packed; then nothing
    else is known. batch: the hyper-parameters that decided which batch it was. Profiles of older versions have fewer
    widths, and no batch.
    """

    device: str
    batch_seconds: dict[str, float]
    peak_bytes: dict[str, int]
    refusal: str = ""
    exact: bool = False
    batch: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingChosen:
    """How many lanes the packs of a plan have that was opened without a width; 0: each stage is trained alone.

    `reason` is in words that follow a colon.
    """

    width: int
    reason: str


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
