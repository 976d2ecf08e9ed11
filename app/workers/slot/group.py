"""The training loop: a group of one or more lanes, each of which ends independently of the others.

A lane requests training up to a step, and evaluates, saves and records its facts by itself. The group trains all lanes
at once, up to the first step that one of them requested.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from app.domain import events as e
from app.domain.events import WITHOUT_PACK
from app.workers.slot.checkpoint_store import ReadOnce
from app.workers.slot.claim import ChainStopped, Claimed, PackBroken
from app.workers.slot.context import SlotContext
from app.workers.slot.lane import Lane, Stage, TrainRequest, TrainResult, resume_stage
from app.workers.slot.models import (
    LANE_FAILURES,
    LaneContext,
    PackedModel,
    can_use_more_ranks,
    measure_ranks,
    needs_more_fact,
    train_together,
)
from app.workers.slot.shared_time import SharedTime
from app.workers.slot.training import TrainingLane
from app.workers.slot.verification import VerificationLane
from stagetree.runtime.commands import PackTrained
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

MAX_BREAKS = 2
"""After this many failures in a row, a plan's packs are trained lane by lane, which shows the cause. A single failure
may be an accident, as when something else kills the process.
"""


class LaneGroup:
    """lanes: by number.
    models: the lanes' models, if they are a pack.
    time: charged to the lanes.
    reader: of the states that they begin with.
    awaits_messages: whether a lane's next stage waits for its message.

    refusal: why a pack's lanes were trained one after the other; empty if they were packed.
    is_broken: whether training failed for all lanes at once.
    """

    def __init__(
        self,
        slot: SlotContext,
        lanes: Mapping[int, Lane],
        models: Mapping[int, PackedModel],
        time: SharedTime,
        reader: ReadOnce,
        awaits_messages: bool,
    ) -> None:
        self.lanes, self._slot, self._models = lanes, slot, models
        self._time, self._reader, self._awaits_messages = time, reader, awaits_messages
        self._stages: dict[int, Stage] = {}
        self._requests: dict[int, TrainRequest] = {}
        self._is_complete: dict[int, bool] = {}  # of each lane, its last stage
        self.refusal, self.is_broken = "", False
        self._is_new = bool(models) and any(lane.work.profile for lane in lanes.values())
        self._measures = bool(models) and any(lane.work.measure for lane in lanes.values())

    @property
    def is_pack(self) -> bool:
        return bool(self._models)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the message of its next stage."""
        return any(lane.is_between_stages for lane in self.lanes.values())

    def run(self) -> bool:
        """Train all stages that may begin, and return whether each lane completed its stages."""
        if self._models:  # a pack begins in a process in which nothing was trained
            self._slot.trainer.end_process()
        with closing(self._reader):
            for number in self.lanes:
                self._begin(number)
        while self._requests:
            if self._measures:
                self._measure()
            elif any(lane.work.measures_ranks is not None for lane in self.lanes.values()):
                self._measure_ranks()
            else:
                self._train()
        if self._slot.trainer.has_failed:  # failed chains are retried in a fresh process
            self._slot.trainer.end_process()
        return all(self._is_complete.values())

    # ------------------------------------------------------------------------------------------------ its lanes

    def _begin(self, number: int) -> None:
        self._stages[number] = self.lanes[number].stage()
        self._resume_lane(number, lambda: next(self._stages[number]))

    def _resume_lane(self, number: int, resume: Callable[[], TrainRequest]) -> None:
        """Run a lane up to its next training request or the end of its stage."""
        try:
            with self._time.charge([number]):
                self._requests[number] = resume()
        except StopIteration as over:
            self._requests.pop(number, None)
            self._is_complete[number] = bool(over.value)
            self._stage_over(number)

    def _stage_over(self, number: int) -> None:
        lane = self.lanes[number]
        if not lane.is_between_stages:
            if number in self._models:
                self._models[number].leave()
        elif self._awaits_messages:
            lane.waits_since = self._slot.dependencies.clock()
        else:
            self._begin(number)

    # ------------------------------------------------------------------------------------------------ training

    def _train(self) -> None:
        """Train all lanes up to the first requested step.

        A lane's own call may have ended the process of all: its lanes are given back.
        """
        if lost := [number for number in self._requests if self._models and not self._models[number].is_alive]:
            self._throw(PackBroken("the process of its pack has ended"), lost)
            return
        requests = dict(self._requests)
        steps = min(request.until - request.begin for request in requests.values())

        def on_progress(steps: int) -> int:
            return max(
                0, min(request.on_progress(request.begin + steps) - request.begin for request in requests.values())
            )

        try:
            with self._time.charge(list(requests)):
                trained = self._run_training(requests, steps, on_progress)
        except Exception as failed:
            self._give_up(failed, list(requests))
            return
        if trained.unpackable_reason and not self.refusal:
            logger.warning(
                "chains that were to be packed are trained one after the other: %s", trained.unpackable_reason
            )
        self.refusal = trained.unpackable_reason
        if trained.profile is not None:
            self._record_profile(next(iter(requests)), trained.profile)
        for number, request in requests.items():
            self._send_result(number, request.begin + trained.steps, trained)

    def _run_training(
        self, requests: Mapping[int, TrainRequest], steps: int, on_progress: Callable[[int], int]
    ) -> PackTrained:
        host, works = self._slot.trainer, {number: self.lanes[number].work for number in requests}
        if self._models:
            return train_together(host, works, steps, on_progress, self._is_new)
        ((number, request),) = requests.items()
        begin = request.begin
        trained = host.train(works[number], begin + steps, lambda step: begin + on_progress(step - begin))
        return PackTrained(trained.step - begin, passed=trained.passed, peak_bytes=trained.peak_bytes)

    def _send_result(self, number: int, reached: int, trained: PackTrained) -> None:
        def train() -> TrainResult:
            if (failed := trained.failed.get(number)) is not None:
                kind, error, signature = failed
                raise TrainerFailed(kind, error, reached - 1, signature)
            reasons = (WITHOUT_PACK,) if number in trained.evicted else ()
            return TrainResult(reached, reasons, trained.passed, trained.peak_bytes)

        self._resume_lane(number, lambda: resume_stage(self._stages[number], train))

    def _give_up(self, failed: Exception, numbers: Sequence[int]) -> None:
        """The cause is unknown unless there is only one lane: each is trained alone next time, which shows it."""
        self.is_broken = isinstance(failed, TrainerFailed)
        if self._models:
            logger.warning("a pack of %d chains is given up: %s", len(numbers), failed)
        is_shared = len(numbers) > 1 and not isinstance(failed, ChainStopped)
        self._throw(PackBroken(str(failed)) if is_shared else failed, numbers)

    def _throw(self, error: Exception, numbers: Sequence[int]) -> None:
        """Raise an error inside each of these lanes."""

        def fail() -> TrainResult:
            raise error

        for number in numbers:
            self._resume_lane(number, partial(resume_stage, self._stages[number], fail))

    # ------------------------------------------------------------------------------------------------ what packs cost

    def _measure(self) -> None:
        """Measure the costs of packs of the only lane's model, without training it."""
        (number,) = self._requests

        def measure() -> TrainResult:
            self._record_profile(number, self._measure_pack(number))
            raise ChainStopped

        self._resume_lane(number, lambda: resume_stage(self._stages[number], measure))

    def _measure_ranks(self) -> None:
        """Measure the only lane's model on different numbers of devices, without training it."""
        (number,) = self._requests
        lane, slot = self.lanes[number], self._slot
        batch, work = dict(lane.work.measures_ranks or {}), lane.work

        def measure() -> TrainResult:
            facts, kind = list[e.Event](), work.kind_on(slot.me.kind)
            try:
                reader, clock = slot.reader, slot.dependencies.clock
                seconds = measure_ranks(slot.trainer, work, lambda at: reader.read(at, lambda: None), clock)
                facts.append(e.RanksProfiled(kind=kind, batch=batch, step_seconds=seconds))
                if (fewest := min(map(int, seconds))) > 1:
                    first = work.stages[0]
                    facts.append(needs_more_fact(work, first, first.start, fewest // 2, slot.me.kind))
            except TrainerFailed as failed:
                if failed.kind not in LANE_FAILURES or can_use_more_ranks(work, failed):
                    raise failed if can_use_more_ranks(work, failed) else PackBroken(str(failed)) from failed
                why = f"measuring it failed: {failed.error.strip().splitlines()[-1]}"
                facts.append(e.RanksProfiled(kind=kind, batch=batch, step_seconds={}, refusal=why))
            slot.outbox.put(lane.claim, facts)
            raise ChainStopped

        self._resume_lane(number, lambda: resume_stage(self._stages[number], measure))

    def _measure_pack(self, number: int) -> Mapping[str, Any]:
        """Raises `PackBroken` for what may be an accident: then it is measured again."""
        try:
            profile, self.refusal = self._models[number].measure(self.lanes[number].work)
        except TrainerFailed as failed:
            if failed.kind not in LANE_FAILURES:
                raise PackBroken(str(failed)) from failed
            profile, self.refusal = {}, f"measuring it failed: {failed.error.strip().splitlines()[-1]}"
        return profile

    def _record_profile(self, number: int, profile: Mapping[str, Any]) -> None:
        """profile: the fact's fields; empty if the models cannot be packed."""
        refused = {"batch_seconds": {}, "peak_bytes": {}, "refusal": self.refusal}
        fact = e.PackingProfiled(device=self._slot.device, **(profile or refused))
        self._slot.outbox.put(self.lanes[number].claim, [fact])
        self._is_new = False


class GroupFactory:
    """Makes groups from claimed chains."""

    def __init__(self, slot: SlotContext) -> None:
        self._slot = slot
        self._breaks = Counter[str]()  # of packs, in a row, by plan

    def create(self, claimed: Sequence[Claimed]) -> list[LaneGroup]:
        """One group; several, to be trained one after the other, if a pack must not be packed any more."""
        if not claimed[0].work.pack:
            return [self._make_single(each) for each in claimed]
        if self._breaks[claimed[0].work.plan] >= MAX_BREAKS:
            return [self._make_single(each, WITHOUT_PACK) for each in claimed]
        return [self._make_pack(claimed)]

    def record_outcome(self, group: LaneGroup) -> None:
        """Note whether a pack broke, which decides how its plan is trained next time."""
        plan = group.lanes[0].work.plan
        if group.is_pack:
            self._breaks[plan] = self._breaks[plan] + 1 if group.is_broken else 0

    def _make_single(self, claimed: Claimed, *inexact_reasons: str) -> LaneGroup:
        slot, time, reader = self._slot, SharedTime(self._slot.dependencies.clock, [0]), ReadOnce(self._slot.reader)
        context = LaneContext(claimed, slot.trainer, reader, partial(time.seconds_of, 0), inexact_reasons)
        lane = TrainingLane(slot, context) if claimed.work.proof is None else VerificationLane(slot, context)
        return LaneGroup(slot, {0: lane}, {}, time, reader, awaits_messages=not claimed.work.pack)

    def _make_pack(self, claimed: Sequence[Claimed]) -> LaneGroup:
        slot, time = self._slot, SharedTime(self._slot.dependencies.clock, range(len(claimed)))
        reader, models = ReadOnce(slot.reader), {n: PackedModel(slot.trainer, n) for n in range(len(claimed))}
        lanes = {
            number: TrainingLane(slot, LaneContext(each, models[number], reader, partial(time.seconds_of, number)))
            for number, each in enumerate(claimed)
        }
        return LaneGroup(slot, lanes, models, time, reader, awaits_messages=False)
