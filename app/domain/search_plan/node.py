"""A node of the plan: its requests, running stages, checkpoints and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain.schedule import ScheduleSegment, segment_at
from app.domain.search_plan.chain import NO_PROGRESS, ChainProgress, Progresses
from app.domain.terms import ChainId, NodeId, TrialKey


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state. `size`, `parts` and `looked` are as in `CheckpointKept`."""

    key: str
    sha256: str
    size: int
    intermediate: bool = False
    """Whether it was saved inside a stage because that was cheap, without a request."""
    since: int | None = None
    """The step from which its chain trained without a break; None if the chain is unknown."""
    parts: tuple[e.StoredPart, ...] = ()
    looked: bool = False

    @property
    def objects(self) -> tuple[e.StoredPart, ...]:
        """All its objects in the store."""
        rest = sum(part.size for part in self.parts)
        return (e.StoredPart(self.key, self.sha256, self.size - rest), *self.parts)


@dataclass(frozen=True, slots=True)
class CachedState:
    """A state on the disk of one host while it is being uploaded. Slots of that host can already use it."""

    checkpoint: Checkpoint
    host: str


@dataclass(frozen=True, slots=True)
class PlacedCheckpoint:
    """A checkpoint with its node and step."""

    node: NodeId
    step: int
    checkpoint: Checkpoint

    @property
    def key(self) -> str:
        return self.checkpoint.key


_NONE: Mapping[int, Checkpoint] = {}

Failures = dict[tuple[int, str], list[str]]
"""Errors of the user's code by step and signature, each with the slots where it was raised, in order."""

MOST_FAILURES = 3
"""This many different errors count as one repetition of an equal error."""


MAX_LOST = 3
"""A stage whose process died this often is isolated in a chain of its own, outside packs. It fails if it dies again."""


def tries(failures: Failures) -> int:
    """How many tries these failures count as: the most of one kind, or a share of all."""
    counts = [len(slots) for slots in failures.values()]
    return max(max(counts, default=0), sum(counts) // MOST_FAILURES)


ErrorLocation = tuple[int, str, bool]
"""An error of the user's code: its step, its signature, and whether an evaluation raised it."""


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """An error that ended a trial after all its tries."""

    tries: int
    trial: TrialKey


@dataclass(slots=True)
class Node:
    """One set of sequences from step `start` on, under a parent. A node has no end of its own."""

    id: NodeId
    parent: NodeId | None
    start: int
    hp: Mapping[str, Any]
    """The hyper-parameters of the first trial that passes the node. From `start` on they are the same for all, but for
    a `data_seed` that is the study's seed: some have it, others leave it out."""
    children: list[NodeId] = field(default_factory=list)
    trials: int = 0
    """How many trials pass the node."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    metrics: dict[int, e.Metrics] = field(default_factory=dict)
    waiting: dict[int, set[TrialKey]] = field(default_factory=dict)
    """By step, the trials that wait for a result or an evaluation there."""
    running: dict[tuple[ChainId, int], tuple[int, int]] = field(default_factory=dict)
    """By chain and index of the stage, the steps (start, end] that it trains here."""
    saving: dict[int, ChainId] = field(default_factory=dict)
    """Trained steps whose checkpoint is being written, with the chain that writes it."""
    cached: dict[int, CachedState] = field(default_factory=dict)
    """The states in `saving` that are already on a host's disk."""

    lost: dict[int, int] = field(default_factory=dict)
    """By step, how often the process of a stage that begins there died alone."""
    failures: Failures = field(default_factory=dict)
    """Errors of the user's code since the last completed stage."""
    evaluation_failures: Failures = field(default_factory=dict)
    """Errors of evaluations, by the step that still has no evaluation."""
    evaluations_given_up: dict[int, int] = field(default_factory=dict)
    """Steps whose evaluation failed with an error that had ended another trial, and the tries that this took."""
    not_exact: dict[tuple[int, str], None] = field(default_factory=dict)
    """The first inexact step of a stage and the reason, in the order of the log."""
    is_isolated: bool = False
    """Whether it belongs to an isolated trial: chains begin at step 0, and its states are never resumed."""
    resumed: dict[int, bool] = field(default_factory=dict)
    """The steps where chains that trained here resumed from a saved state; and whether one of them only evaluated that
    state, so that the result at this step depends on it."""

    steps_run: int = 0
    seconds: float = 0.0
    """Seconds of these steps on one device. For several devices, what one would have taken."""
    rates: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The same by kind of GPU: steps and seconds."""
    paces: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """By kind of device and ranks, the steps that several devices trained, and their wall seconds."""
    peaks: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """By kind of GPU, start and end of a stage on one device, its peak memory: see `StageCompleted`."""
    gpu: str = ""
    """The kind of GPU that trained the node last; "" for none, or an unknown one."""
    trained: int = 0
    """The last recorded step: the end of a stage, or a checkpoint inside one."""
    reached: int = 0
    """The last trained step, even if its state was lost."""
    failed_at: int = 0
    """The last step whose state was lost because the user's code raised."""
    _segment: ScheduleSegment | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.trained = max(self.trained, self.start)
        self.reached = max(self.reached, self.start)

    @property
    def segment(self) -> ScheduleSegment:
        """The values from its start on. Raises `stagetree.sequences.SequenceError`."""
        if self._segment is None:
            self._segment = segment_at(self.hp, self.start)
        return self._segment

    @property
    def resumable(self) -> Mapping[int, Checkpoint]:
        """The checkpoints by step that training may resume from."""
        return _NONE if self.is_isolated else self.checkpoints

    @property
    def available_steps(self) -> frozenset[int]:
        """The steps whose states a chain can begin with now, perhaps on one host only."""
        return frozenset() if self.is_isolated else frozenset((*self.checkpoints, *self.cached))

    def is_available(self, step: int) -> bool:
        return not self.is_isolated and (step in self.checkpoints or step in self.cached)

    def state_at(self, step: int) -> Checkpoint:
        """The state at a step of `available_steps`."""
        return self.checkpoints[step] if step in self.checkpoints else self.cached[step].checkpoint

    def evaluation_tries(self, step: int) -> int:
        """How many failed tries the evaluation at a step counts."""
        own = tries({place: slots for place, slots in self.evaluation_failures.items() if place[0] == step})
        return max(own, self.evaluations_given_up.get(step, 0))

    def count_failures(self, evaluated: int | None) -> int:
        """How often the user's code has raised in this evaluation or, with None, in training since the last success."""
        if evaluated is None:
            return sum(map(len, self.failures.values()))
        return sum(len(slots) for (step, _), slots in self.evaluation_failures.items() if step == evaluated)

    def add_timing(self, gpu: str, steps: int, seconds: float) -> None:
        """Record steps on a kind of GPU. seconds: of one device."""
        self.steps_run += steps
        self.seconds += seconds
        before = self.rates.get(gpu, (0, 0.0))
        self.rates[gpu] = (before[0] + steps, before[1] + seconds)

    def forget_failures(self) -> None:
        """Reset the failure counts, so that errors here are retried from zero."""
        for each in (self.lost, self.failures, self.evaluation_failures, self.evaluations_given_up):
            each.clear()

    def covers(self, step: int, progress: Progresses = NO_PROGRESS) -> bool:
        """Whether a running stage will pass `step` here, or evaluates the state there.

        It does not pass the steps behind it again. The state at its end is always kept.
        """
        return any(
            _is_covered(step, start, end, progress.get(chain)) for (chain, _), (start, end) in self.running.items()
        )

    def upcoming_states(self, progress: Progresses = NO_PROGRESS) -> Iterator[int]:
        """The steps whose states will be saved by the running stages."""
        if self.is_isolated:
            return
        yield from self.saving
        for (chain, _), (start, end) in self.running.items():
            yield end
            if chain in progress:
                yield from (step for step in progress[chain].saving if start < step < end)


def _is_covered(step: int, start: int, end: int, progress: ChainProgress | None) -> bool:
    if step == end:
        return True
    if progress is not None and step in progress.saving:
        return start < step < end
    return max(start, progress.step if progress else start) < step < end
