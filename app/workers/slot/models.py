"""A lane's model, as its lane uses it, and the models of a pack, which the trainer's process trains together.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.domain.chain_assignment import ChainAssignment, ResumePoint
from app.domain.events import NeedsMore, Stage
from app.domain.schedule import segment_at
from app.workers.slot.checkpoint_store import Reader
from app.workers.slot.claim import ChainStopped, Claimed, PackBroken
from app.workers.slot.retry import Clock, Seconds
from app.workers.slot.trainer_host import Place, TrainerHost
from app.workers.state import State
from app.workers.trial_logs import StageFiles
from stagetree.limits import BATCH_SIZES
from stagetree.runtime.commands import Evaluation, Json, PackTrained
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

LANE_FAILURES = ("exception", "out_of_memory")
"""Failures of one lane's user code, after which the process continues with the other lanes."""

MEASURED_STEPS, MEASURED_SECONDS = 5, 5.0
"""This many steps, or this much time, measure the speed on several devices."""

MIN_STEP_SECONDS = 1e-9
"""Prevents a step time of zero with a coarse clock."""

MEMORY_FAILURES = ("out_of_memory",)
"""Failures that may be caused by the models loaded before."""


class LaneModel(Protocol):
    """The model of a lane, trained by its group. `TrainerHost` is the one of a single lane; it says what the
    methods raise.
    """

    @property
    def inexact_reasons(self) -> tuple[str, ...]: ...
    @property
    def operations(self) -> tuple[str, ...]: ...
    @property
    def shares_process(self) -> bool: ...
    def begin(
        self, work: ChainAssignment, index: int, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None: ...
    def evaluate(self, *, watch: bool = False, look: bool | None = None) -> Evaluation: ...
    def save(self, *, look: bool = False) -> State: ...
    def set_place(self, place: Place) -> None: ...


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What a lane is given. seconds: the slot time that it has used.

    inexact_reasons: why its bits may differ from a model trained alone, besides the model's own reasons.
    """

    claimed: Claimed
    model: LaneModel
    reader: Reader
    seconds: Callable[[], Seconds]
    inexact_reasons: tuple[str, ...] = ()


class PackedModel:
    """The model of one lane of a pack. number: of the lane.

    inexact_reasons: as for `TrainerHost`. `evaluate` and `save` raise `PackBroken` if another lane's call ended the
        process.
    """

    shares_process = False

    def __init__(self, host: TrainerHost, number: int) -> None:
        self._host, self.number = host, number
        self._process: object | None = None
        self.inexact_reasons: tuple[str, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether the process that holds it has not ended."""
        return self._process is not None and self._process is self._host.process

    @property
    def operations(self) -> tuple[str, ...]:
        return self._host.operations

    def begin(
        self, work: ChainAssignment, index: int, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None:
        """Place the model where stage `index` begins. Raises `PackBroken` if there is no room for it."""
        if index == 0:
            self._join(work, read)
        self.inexact_reasons = self.inexact_reasons if index == 0 else ()
        self._host.print_to(log, self.number)

    def evaluate(self, *, watch: bool = False, look: bool | None = None) -> Evaluation:
        self._check_alive()
        return self._host.commands(LANE_FAILURES).evaluate(lane=self.number)

    def save(self, *, look: bool = False) -> State:
        self._check_alive()
        return self._host.save(lane=self.number, tolerated=LANE_FAILURES)

    def set_place(self, place: Place) -> None:
        """Nothing: a pack's models are freed at its end."""

    def measure(self, work: ChainAssignment) -> tuple[Json, str]:
        """As `Child.measure`, for packs of the requested widths. Raises `TrainerFailed`."""
        return self._host.commands(LANE_FAILURES).measure(lane=self.number, hp=dict(work.hp), widest=work.measure)

    def leave(self) -> None:
        """Free the model's memory, unless its process has ended."""
        if self.is_alive:
            with suppress(TrainerFailed, ChainStopped):  # the other lanes notice it themselves
                self._host.commands().leave(lanes=[self.number])

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise PackBroken("the process of its pack has ended")

    def _join(self, work: ChainAssignment, read: Callable[[ResumePoint], State]) -> None:
        tolerated = MEMORY_FAILURES if self.number else ()
        try:
            self._host.build_lane(work, tolerated)
            self._host.load(work, read, tolerated)
            if work.reads:
                self.inexact_reasons = self._host.inexact_reasons
            self._host.commands().join(lane=self.number, width=work.packing)
            self._process = self._host.process
        except TrainerFailed as failed:
            if failed.kind in tolerated:
                raise PackBroken(f"there is no room for it beside {self.number} others") from failed
            raise


def train_together(
    host: TrainerHost,
    works: Mapping[int, ChainAssignment],
    steps: int,
    on_progress: Callable[[int], int],
    profile: bool,
) -> PackTrained:
    """Train these lanes of a pack for `steps` steps each; fewer if `on_progress` says so, or if one fails.

    on_progress: given the number of steps taken, returns how many to take in all.
    profile: also measure the costs of packs. Raises `TrainerFailed` for failures of all lanes.
    """
    hps = {number: work.hp for number, work in works.items()}
    deadline = host.deadline("train").limit_steps(is_patient=any(work.patient for work in works.values()))

    how: Any = {"deadline": deadline, "on_progress": on_progress, "profile": profile}
    trained = host.call(lambda process: process.train_together(hps, steps, **how))
    host.has_failed |= bool(trained.failed)
    return trained


def can_use_more_ranks(work: ChainAssignment, failed: TrainerFailed) -> bool:
    """Whether twice as many devices may help a chain that was out of memory."""
    return failed.kind in MEMORY_FAILURES and failed.may_divide and 2 * work.ranks <= work.most_ranks


def needs_more_fact(work: ChainAssignment, stage: Stage, step: int, ranks: int, kind: str) -> NeedsMore:
    """The fact that this many devices of a kind were too few for the batch after a step."""
    values = segment_at(work.hp, step).values(step)
    batch = {name: values[name] for name in BATCH_SIZES if name in values}
    return NeedsMore(node=stage.node, step=step, kind=kind, ranks=ranks, batch=batch)


def measure_ranks(
    host: TrainerHost, work: ChainAssignment, read: Callable[[ResumePoint], State], clock: Clock
) -> dict[str, float]:
    """Seconds a step of the newly begun model by number of devices, down to the number that runs out of memory.

    Raises as `TrainerHost.begin`.
    """
    seconds, start, members = dict[str, float](), work.stages[0].start, work.members
    while True:
        part = replace(work, members=members)
        try:
            if members != work.members:
                host.begin(part, 0, read, None)
            host.train(part, start + 1, lambda step: None)  # the first step takes longer
            begun_at = clock()

            def end(step: int, begun_at: float = begun_at) -> int | None:
                return 0 if clock() - begun_at > MEASURED_SECONDS else None

            step = host.train(part, start + 1 + MEASURED_STEPS, end).step
        except TrainerFailed as failed:
            if not seconds or failed.kind not in MEMORY_FAILURES:
                raise
            return seconds
        seconds[str(part.ranks)] = max(clock() - begun_at, MIN_STEP_SECONDS) / (step - start - 1)
        if not members:
            host.end_process()
            return seconds
        members = members[: part.ranks // 2 - 1]
