"""Several chains that a slot trains together, each of which ends when it ends, whatever becomes of the others.

A chain of the pack is a `ChainRun` as any other: it says until where it would train, evaluates, saves and states its
facts by itself. Only the training is done here, for all of them at once, up to where the first of them wants to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from app.domain import events as e
from app.domain.exactness import WITHOUT_PACK
from app.workers.slot.chain_run import ChainRun
from app.workers.slot.driving import Stage, answered
from app.workers.slot.lane_host import ITS_OWN, LaneHost, train_together
from app.workers.slot.resuming import ReadOnce
from app.workers.slot.shared_time import SharedTime
from app.workers.slot.trainer_host import ModelMisplaced, TrainerHost
from app.workers.slot.unwanted import PackBroken, Stopped
from app.workers.trainer_connection import TrainerKilled
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)


class PackRun:
    """runs: by the number of the lane, with a `LaneHost` each. time: of which each is charged its share. reader: of
    what they begin with.

    refusal: why its chains could only be trained one after the other; empty if they could be packed. is_broken: whether
    training failed for all of them at once.
    """

    def __init__(
        self,
        runs: dict[int, ChainRun],
        lanes: dict[int, LaneHost],
        host: TrainerHost,
        time: SharedTime,
        reader: ReadOnce,
        device: str,
    ) -> None:
        self._runs, self._lanes, self._host, self._time = runs, lanes, host, time
        self._reader, self._device = reader, device
        self._stages: dict[int, Stage] = {}
        self._wanted: dict[int, int] = {}  # until which step each lane would train
        self.refusal, self.is_broken = "", False
        self._is_new = any(run.work.profile for run in runs.values())
        self._measures = any(run.work.measure for run in runs.values())

    def run(self) -> None:
        """Train all the stages of all chains."""
        with closing(self._reader):
            for number in self._runs:
                self._begin(number)
        while self._wanted:
            if self._measures:
                self._measure()
            else:
                self._train()
        if self._host.has_failed:  # what has, is tried again in a fresh process
            self._host.end_process()

    def _begin(self, number: int) -> None:
        self._stages[number] = self._runs[number].stage()
        self._go_on(number, lambda: next(self._stages[number]))

    def _go_on(self, number: int, go_on: Callable[[], int]) -> None:
        """A chain does what is to be done, up to where it trains again or is over."""
        run = self._runs[number]
        try:
            with self._time.charged_to([number]):
                self._wanted[number] = go_on()
        except StopIteration:
            self._wanted.pop(number, None)
            if run.is_between_stages:
                self._begin(number)
            else:
                self._lanes[number].leave()

    def _measure(self) -> None:
        """See how packs of the only lane's model would do, and train nothing."""
        (number,) = self._wanted

        def measure() -> int:
            self._tell_profile(number, self._measured(number))
            raise Stopped

        self._go_on(number, lambda: answered(self._stages[number], measure))

    def _measured(self, number: int) -> Mapping[str, Any]:
        """Raises `PackBroken` for what may be nobody's fault: then it is measured again."""
        try:
            profile, self.refusal = self._lanes[number].measure(self._runs[number].work)
        except TrainerFailed as failed:
            if failed.kind not in ITS_OWN:
                raise PackBroken(str(failed)) from failed
            profile, self.refusal = {}, f"measuring it failed: {failed.error.strip().splitlines()[-1]}"
        return profile

    def _train(self) -> None:
        """All of them go on, to where the first one has something else to do."""
        begins = {number: self._runs[number].execution.step for number in self._wanted}
        steps = min(until - begins[number] for number, until in self._wanted.items())

        def on_progress(taken: int) -> int:
            ends = (self._runs[number].on_progress(begin + taken) - begin for number, begin in begins.items())
            return max(0, min(ends))

        works = {number: self._runs[number].work for number in begins}
        try:
            with self._time.charged_to(list(begins)):
                trained = train_together(self._host, works, steps, on_progress, self._is_new)
        except (TrainerFailed, TrainerKilled, ModelMisplaced) as failed:
            self._break(failed, list(begins))
            return
        self._note(trained.refusal)
        if trained.profile is not None:
            self._tell_profile(next(iter(begins)), trained.profile)
        for number, begin in begins.items():
            if number in trained.put_out:
                self._runs[number].note_not_exact(WITHOUT_PACK)
            self._tell(number, begin + trained.steps, trained.failed.get(number))

    def _tell_profile(self, number: int, profile: Mapping[str, Any]) -> None:
        """profile: its fields; none where the models cannot be packed."""
        refused = {"batch_seconds": {}, "peak_bytes": {}, "refusal": self.refusal}
        self._runs[number].note(e.PackingProfiled(device=self._device, **(profile or refused)))
        self._is_new = False

    def _tell(self, number: int, reached: int, failed: TrainerFailed | None) -> None:
        def train() -> int:
            if failed is not None:
                raise TrainerFailed(failed.kind, failed.error, reached - 1, failed.signature)
            return reached

        self._go_on(number, lambda: answered(self._stages[number], train))

    def _break(self, failed: Exception, numbers: Sequence[int]) -> None:
        """Nobody knows whose fault it is, unless there is only one: each is trained alone, where it will be seen."""
        logger.warning("a pack of %d chains is given up: %s", len(numbers), failed)
        self.is_broken = isinstance(failed, TrainerFailed)

        def train() -> int:
            raise failed if isinstance(failed, TrainerKilled) or len(numbers) == 1 else PackBroken(str(failed))

        for number in numbers:
            self._go_on(number, lambda number=number: answered(self._stages[number], train))  # type: ignore[misc]

    def _note(self, refusal: str) -> None:
        if refusal and not self.refusal:
            logger.warning("chains that were to be packed are trained one after the other: %s", refusal)
        self.refusal = refusal
