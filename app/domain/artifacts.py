"""What training leaves behind, as events: metrics, checkpoints, and what is not exact. See `app.domain.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.ids import NodeId

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
    else is known. batch: the hyper-parameters that decided which batch it was. other_draws: the first module that draws
    other random numbers in a pack than alone, by its name in the model; empty where none does, and in profiles of older
    versions, which have fewer widths and no batch, too.
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
