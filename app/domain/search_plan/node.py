"""A node of the plan: what is wanted there, what is under way, and what is kept."""

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
    """Where a state is kept. `intermediate`: inside a stage, because it was cheap, not because anyone asked.

    since: the step from which its chain trained without a break; None where no chain is on record that did.
    size, parts, looked: as in `CheckpointKept`.
    """

    key: str
    sha256: str
    size: int
    intermediate: bool = False
    since: int | None = None
    parts: tuple[e.StoredPart, ...] = ()
    looked: bool = False

    @property
    def objects(self) -> tuple[e.StoredPart, ...]:
        """All that it is in the store."""
        rest = sum(part.size for part in self.parts)
        return (e.StoredPart(self.key, self.sha256, self.size - rest), *self.parts)


@dataclass(frozen=True, slots=True)
class CachedState:
    """A state that is being uploaded, and until then is on a disk of one host, for the slots there."""

    checkpoint: Checkpoint
    host: str


@dataclass(frozen=True, slots=True)
class PlacedCheckpoint:
    """A checkpoint, and the node and step whose state it holds."""

    node: NodeId
    step: int
    checkpoint: Checkpoint

    @property
    def key(self) -> str:
        return self.checkpoint.key


_NONE: Mapping[int, Checkpoint] = {}

Failures = dict[tuple[int, str], list[str]]
"""What the user's code raised: at which step and what, by its signature; and on which slots, in order."""

MOST_FAILURES = 3
"""Errors that differ each time count as well, once there are so many times more of them than equal ones may be."""


MAX_LOST = 3
"""A stage whose process died this often is isolated: a chain of its own, in no pack. Should it die again, it fails."""


def tries(failures: Failures) -> int:
    """How many tries these failures have cost: the most of one kind, or a share of all."""
    counts = [len(slots) for slots in failures.values()]
    return max(max(counts, default=0), sum(counts) // MOST_FAILURES)


ErrorLocation = tuple[int, str, bool]
"""An error of the user's code: after which step, what and at which line, and whether an evaluation raised it."""


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """An error that was raised in so many tries, all there were, and ended a trial."""

    tries: int
    trial: TrialKey


@dataclass(slots=True)
class Node:
    """One set of sequences from step `start` on, under a parent; it has no end of its own.

    hp: of the first trial that came here; from `start` on, all who do have the same.
    waiting: at each step, the trials that asked for a result there and have none yet, or must be evaluated there.
    running: for each stage of a chain under way, the steps (start, end] it trains here.
    saving: steps that were trained and whose checkpoint is still being written, each with the chain that does it.
    cached: the states among them that a host's disk has already.
    lost: at each step, how often the process died alone that trained a stage that began there.
    trained: the last step that was trained here and recorded, by a stage's end or a checkpoint inside one.
    reached: the last step that a worker trained here, even if its state was lost. failed_at: the last of those whose
    state was lost because the user's code raised.
    failures: what the user's code raised here since a stage was completed.
    evaluation_failures: the same of its evaluations, each at the step that could not be evaluated since.
    evaluations_given_up: of those, the steps at which an equal error had ended a trial elsewhere, and the tries that
    this had taken.
    not_exact: the first step that each of the stages concerns which are not exact, and why; in the order of the log.
    alone: whether nothing is trained on from its states: each chain begins at step 0. trials: how many pass it.
    resumed: the steps of the saved states that chains began with which trained here; for each, whether one of them only
    evaluated that state, so that the result at the step itself rests on it.
    seconds: that its steps have taken, or would have on one device where several trained them. rates: by kind of GPU,
    the steps that it has trained, and their part of the seconds. paces: by kind of
    device and ranks, what several have trained: the steps, and the seconds that passed. peaks: by kind of GPU and the
    start and end of a stage that one device trained, the most memory, see `StageCompleted`. gpu: the kind of GPU on
    which it was trained last; "" for none, or an unknown one.
    """

    id: NodeId
    parent: NodeId | None
    start: int
    hp: Mapping[str, Any]
    children: list[NodeId] = field(default_factory=list)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    metrics: dict[int, e.Metrics] = field(default_factory=dict)
    waiting: dict[int, set[TrialKey]] = field(default_factory=dict)
    running: dict[tuple[ChainId, int], tuple[int, int]] = field(default_factory=dict)
    saving: dict[int, ChainId] = field(default_factory=dict)
    cached: dict[int, CachedState] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)
    evaluation_failures: Failures = field(default_factory=dict)
    evaluations_given_up: dict[int, int] = field(default_factory=dict)
    not_exact: dict[tuple[int, str], None] = field(default_factory=dict)
    steps_run: int = 0
    seconds: float = 0.0
    trained: int = 0
    alone: bool = False
    trials: int = 0
    resumed: dict[int, bool] = field(default_factory=dict)
    rates: dict[str, tuple[int, float]] = field(default_factory=dict)
    paces: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    peaks: dict[tuple[str, int, int], int] = field(default_factory=dict)
    gpu: str = ""
    reached: int = 0
    failed_at: int = 0
    _segment: ScheduleSegment | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.trained = max(self.trained, self.start)
        self.reached = max(self.reached, self.start)

    @property
    def segment(self) -> ScheduleSegment:
        """What is in force from its start on. Raises `stagetree.sequences.SequenceError`."""
        if self._segment is None:
            self._segment = segment_at(self.hp, self.start)
        return self._segment

    @property
    def resumable(self) -> Mapping[int, Checkpoint]:
        """The states, by step, that training may go on from."""
        return _NONE if self.alone else self.checkpoints

    @property
    def available_steps(self) -> frozenset[int]:
        """The steps whose states a chain may begin with now, if only on some host."""
        return frozenset() if self.alone else frozenset((*self.checkpoints, *self.cached))

    def is_available(self, step: int) -> bool:
        """Whether a step is in `available_steps`."""
        return not self.alone and (step in self.checkpoints or step in self.cached)

    def state_at(self, step: int) -> Checkpoint:
        """What a chain begins with that begins at a step of `available_steps`."""
        return self.checkpoints[step] if step in self.checkpoints else self.cached[step].checkpoint

    def evaluation_tries(self, step: int) -> int:
        """How many tries the evaluation at a step has cost, in vain."""
        own = tries({place: slots for place, slots in self.evaluation_failures.items() if place[0] == step})
        return max(own, self.evaluations_given_up.get(step, 0))

    def count_failures(self, evaluated: int | None) -> int:
        """How often the user's code has raised: in this evaluation or, with None, in training since it went well."""
        if evaluated is None:
            return sum(map(len, self.failures.values()))
        return sum(len(slots) for (step, _), slots in self.evaluation_failures.items() if step == evaluated)

    def add_timing(self, gpu: str, steps: int, seconds: float) -> None:
        """So many steps were run on a kind of GPU, in as many seconds of one device."""
        self.steps_run += steps
        self.seconds += seconds
        before = self.rates.get(gpu, (0, 0.0))
        self.rates[gpu] = (before[0] + steps, before[1] + seconds)

    def forget_failures(self) -> None:
        """Whatever went wrong here is tried as often as if it had not."""
        for each in (self.lost, self.failures, self.evaluation_failures, self.evaluations_given_up):
            each.clear()

    def covers(self, step: int, progress: Progresses = NO_PROGRESS) -> bool:
        """True when a stage under way will pass `step` here, or evaluates what is kept there.

        What it has passed, it will not pass again; but its end is kept in any case.
        """
        return any(
            _is_covered(step, start, end, progress.get(chain)) for (chain, _), (start, end) in self.running.items()
        )

    def upcoming_states(self, progress: Progresses = NO_PROGRESS) -> Iterator[int]:
        """The steps at which its state will be kept, once the stages under way are over and everything is saved."""
        if self.alone:
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
