"""The models of a pack in the trainer's process, and each of them as the chain that trains it sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from app.scheduling.assignment import ChainAssignment, ResumePoint
from app.workers.slot.trainer_host import Place, TrainerHost
from app.workers.slot.trial_log import StageFiles
from app.workers.slot.unwanted import PackBroken
from app.workers.state import State
from app.workers.trainer_process import TrainedTogether, TrainerProcess
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

ITS_OWN = ("exception", "out_of_memory")
"""What the user's code raises where only one lane is concerned: the process goes on with the others."""

NO_ROOM = ("out_of_memory",)
"""What a model that is not the first may fail of for no fault of its own."""


class LaneHost:
    """As `TrainerHost`, for one lane of a pack. number: of the lane.

    Whatever the others do, it is at its place until it leaves: see `TrainerHost` for what the methods raise.
    """

    def __init__(self, host: TrainerHost, number: int) -> None:
        self._host, self.number = host, number
        self.changes: tuple[str, ...] = ()

    @property
    def operations(self) -> tuple[str, ...]:
        return self._host.operations

    @property
    def versions(self) -> dict[str, str]:
        return self._host.versions

    def begin(
        self, work: ChainAssignment, index: int, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None:
        """Have the model of the lane where stage `index` begins. Raises `PackBroken` if there is no room for it."""
        if index == 0:
            self._join(work, read)
        self.changes = self.changes if index == 0 else ()
        if log is not None:
            files = log
            self._host.call(lambda process: process.log(files.printed, files.rows, lane=self.number))

    def train(self, work: ChainAssignment, until: int, on_progress: Callable[[int], int | None]) -> int:
        raise NotImplementedError("a lane is trained with its pack")

    def evaluate(self) -> dict[str, float | None]:
        deadline = self._host.deadline("evaluate")
        return self._host.call(lambda process: process.evaluate(deadline=deadline, lane=self.number), spares=ITS_OWN)

    def save(self) -> State:
        deadline = self._host.deadline("save")
        return self._host.call(lambda process: process.save(deadline=deadline, lane=self.number), spares=ITS_OWN)

    def measure(self, work: ChainAssignment) -> tuple[Mapping[str, Any], str]:
        """As `TrainerProcess.measure`, of packs of as many lanes as the chain asks about. Raises `TrainerFailed`."""
        deadline = self._host.deadline("measure")
        return self._host.call(
            lambda process: process.measure(self.number, work.hp, work.measure, deadline=deadline), spares=ITS_OWN
        )

    def leave(self) -> None:
        """The memory of the model is free after that. It may be gone already, with its process."""
        if self._host.has_process:
            deadline = self._host.deadline("leave")
            self._host.call(lambda process: process.leave([self.number], deadline=deadline))

    def mark_at(self, place: Place) -> None:
        """A lane stays in memory no longer than its pack."""

    def check(self) -> None:
        self._host.check()

    def end_process(self) -> None:
        self._host.end_process()

    def _join(self, work: ChainAssignment, read: Callable[[ResumePoint], State]) -> None:
        state = None if work.first_read is None else read(work.first_read)
        spares = NO_ROOM if self.number else ()
        try:
            self._host.build_lane(work, spares)
            if state is not None:
                self._host.load(work, state, spares)
                self.changes = self._host.changes
            deadline = self._host.deadline("join")
            self._host.call(lambda process: process.join(self.number, work.packing, deadline=deadline))
        except TrainerFailed as failed:
            if failed.kind in spares:
                raise PackBroken(f"there is no room for it beside {self.number} others") from failed
            raise
        finally:
            if state is not None:
                state.close()


def train_together(
    host: TrainerHost,
    works: Mapping[int, ChainAssignment],
    steps: int,
    on_progress: Callable[[int], int],
    profile: bool,
) -> TrainedTogether:
    """Train these lanes for so many steps each; fewer if `on_progress` says so, or if one fails.

    Raises `TrainerFailed` for what concerns all, and `ModelMisplaced` where the process has ended meanwhile.

    on_progress: called with how many they have taken, it returns how many they are to take in all. profile: whether to
    measure what packs cost, too.
    """
    hps = {number: work.hp for number, work in works.items()}
    deadline = host.deadline("train")

    def train(process: TrainerProcess) -> TrainedTogether:
        return process.train_together(hps, steps, deadline=deadline, on_progress=on_progress, profile=profile)

    trained = host.call(train)
    host.has_failed |= bool(trained.failed)
    return trained
