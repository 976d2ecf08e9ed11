"""Runs on: the thread that trains.

The loop that trains: a group of one lane or several, each of which ends when it ends, whatever becomes of the others.

A lane says until where it would train, evaluates, saves and states its facts by itself. Only the training is done here,
for all of them at once, up to where the first of them wants to stop.
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
from app.workers.slot.claim import Claimed, PackBroken, Stopped
from app.workers.slot.context import SlotContext
from app.workers.slot.lane import Lane, Stage, Trained, Wish, answer
from app.workers.slot.models import (
    ITS_OWN,
    LaneContext,
    PackedModel,
    can_have_more,
    measure_ranks,
    needs_more,
    train_together,
)
from app.workers.slot.retry import SharedTime
from app.workers.slot.training import TrainingLane
from app.workers.slot.verification import ProofLane
from app.workers.trainer_process import TrainedTogether
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

MOST_BREAKS = 2
"""What breaks so often in a row is trained without packs, where it shows whose fault it is: once may be an accident, as
when something else ends the process."""


class LaneGroup:
    """lanes: by number. models: theirs, if they are a pack. time: of which each is charged its share. reader: of what
    they begin with. awaits_messages: whether a lane's next stage begins when its message comes, and not at once.

    refusal: why a pack's lanes could only be trained one after the other; empty if they could be packed. is_broken:
    whether training failed for all of them at once.
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
        self._wanted: dict[int, Wish] = {}
        self._is_complete: dict[int, bool] = {}  # of each lane, its last stage
        self.refusal, self.is_broken = "", False
        self._is_new = bool(models) and any(lane.work.profile for lane in lanes.values())
        self._measures = bool(models) and any(lane.work.measure for lane in lanes.values())

    @property
    def is_pack(self) -> bool:
        return bool(self._models)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the message that begins its next stage."""
        return any(lane.is_between_stages for lane in self.lanes.values())

    def run(self) -> bool:
        """Train all stages that may begin; whether each lane has completed what it began."""
        if self._models:  # a pack begins in a process in which nothing was trained
            self._slot.trainer.end_process()
        with closing(self._reader):
            for number in self.lanes:
                self._begin(number)
        while self._wanted:
            if self._measures:
                self._measure()
            elif any(lane.work.measures_ranks is not None for lane in self.lanes.values()):
                self._measure_ranks()
            else:
                self._train()
        if self._slot.trainer.has_failed:  # what has, is tried again in a fresh process
            self._slot.trainer.end_process()
        return all(self._is_complete.values())

    # ------------------------------------------------------------------------------------------------ its lanes

    def _begin(self, number: int) -> None:
        self._stages[number] = self.lanes[number].stage()
        self._go_on(number, lambda: next(self._stages[number]))

    def _go_on(self, number: int, go_on: Callable[[], Wish]) -> None:
        """A lane does what must be done, up to where it trains again or its stage is over."""
        try:
            with self._time.charged_to([number]):
                self._wanted[number] = go_on()
        except StopIteration as over:
            self._wanted.pop(number, None)
            self._is_complete[number] = bool(over.value)
            self._stage_over(number)

    def _stage_over(self, number: int) -> None:
        lane = self.lanes[number]
        if not lane.is_between_stages:
            if number in self._models:
                self._models[number].leave()
        elif self._awaits_messages:
            lane.waits_since = self._slot.given.clock()
        else:
            self._begin(number)

    # ------------------------------------------------------------------------------------------------ training

    def _train(self) -> None:
        """All of them go on, to where the first one has something else to do.

        A call for one lane may have ended the process of all: the lanes that were in it are given back.
        """
        if lost := [number for number in self._wanted if self._models and not self._models[number].is_there]:
            self._throw(PackBroken("the process of its pack has ended"), lost)
            return
        wishes = dict(self._wanted)
        steps = min(wish.until - wish.begin for wish in wishes.values())

        def on_progress(steps: int) -> int:
            return max(0, min(wish.on_progress(wish.begin + steps) - wish.begin for wish in wishes.values()))

        try:
            with self._time.charged_to(list(wishes)):
                trained = self._trained(wishes, steps, on_progress)
        except Exception as failed:
            self._break(failed, list(wishes))
            return
        self._note(trained.unpackable_reason)
        if trained.profile is not None:
            self._tell_profile(next(iter(wishes)), trained.profile)
        for number, wish in wishes.items():
            self._tell(number, wish.begin + trained.steps, trained)

    def _trained(self, wishes: Mapping[int, Wish], steps: int, on_progress: Callable[[int], int]) -> TrainedTogether:
        host, works = self._slot.trainer, {number: self.lanes[number].work for number in wishes}
        if self._models:
            return train_together(host, works, steps, on_progress, self._is_new)
        ((number, wish),) = wishes.items()
        begin = wish.begin
        trained = host.train(works[number], begin + steps, lambda step: begin + on_progress(step - begin))
        return TrainedTogether(trained.step - begin, {}, "", passed=trained.passed, peak_bytes=trained.peak_bytes)

    def _tell(self, number: int, reached: int, trained: TrainedTogether) -> None:
        def train() -> Trained:
            if (failed := trained.failed.get(number)) is not None:
                raise TrainerFailed(failed.kind, failed.error, reached - 1, failed.signature)
            reasons = (WITHOUT_PACK,) if number in trained.evicted else ()
            return Trained(reached, reasons, trained.passed, trained.peak_bytes)

        self._go_on(number, lambda: answer(self._stages[number], train))

    def _break(self, failed: Exception, numbers: Sequence[int]) -> None:
        """Nobody knows whose fault it is, unless there is only one: each is trained alone, where it will be seen."""
        self.is_broken = isinstance(failed, TrainerFailed)
        if self._models:
            logger.warning("a pack of %d chains is given up: %s", len(numbers), failed)
        is_shared = len(numbers) > 1 and not isinstance(failed, Stopped)
        self._throw(PackBroken(str(failed)) if is_shared else failed, numbers)

    def _throw(self, error: Exception, numbers: Sequence[int]) -> None:
        """Into each of these lanes."""

        def fail() -> Trained:
            raise error

        for number in numbers:
            self._go_on(number, partial(answer, self._stages[number], fail))

    # ------------------------------------------------------------------------------------------------ what packs cost

    def _measure(self) -> None:
        """See how packs of the only lane's model would do, and train nothing."""
        (number,) = self._wanted

        def measure() -> Trained:
            self._tell_profile(number, self._measured(number))
            raise Stopped

        self._go_on(number, lambda: answer(self._stages[number], measure))

    def _measure_ranks(self) -> None:
        """See how fast the only lane's model is on more and fewer devices, and train nothing."""
        (number,) = self._wanted
        lane, slot = self.lanes[number], self._slot
        batch, work = dict(lane.work.measures_ranks or {}), lane.work

        def measure() -> Trained:
            facts, kind = list[e.Event](), work.kind_on(slot.me.kind)
            try:
                reader, clock = slot.reader, slot.given.clock
                seconds = measure_ranks(slot.trainer, work, lambda at: reader.read(at, lambda: None), clock)
                facts.append(e.RanksProfiled(kind=kind, batch=batch, step_seconds=seconds))
                if (fewest := min(map(int, seconds))) > 1:
                    first = work.stages[0]
                    facts.append(needs_more(work, first, first.start, fewest // 2, slot.me.kind))
            except TrainerFailed as failed:
                if failed.kind not in ITS_OWN or can_have_more(work, failed):
                    raise failed if can_have_more(work, failed) else PackBroken(str(failed)) from failed
                why = f"measuring it failed: {failed.error.strip().splitlines()[-1]}"
                facts.append(e.RanksProfiled(kind=kind, batch=batch, step_seconds={}, refusal=why))
            slot.outbox.put(lane.claim, facts)
            raise Stopped

        self._go_on(number, lambda: answer(self._stages[number], measure))

    def _measured(self, number: int) -> Mapping[str, Any]:
        """Raises `PackBroken` for what may be nobody's fault: then it is measured again."""
        try:
            profile, self.refusal = self._models[number].measure(self.lanes[number].work)
        except TrainerFailed as failed:
            if failed.kind not in ITS_OWN:
                raise PackBroken(str(failed)) from failed
            profile, self.refusal = {}, f"measuring it failed: {failed.error.strip().splitlines()[-1]}"
        return profile

    def _tell_profile(self, number: int, profile: Mapping[str, Any]) -> None:
        """profile: its fields; none where the models cannot be packed."""
        refused = {"batch_seconds": {}, "peak_bytes": {}, "refusal": self.refusal}
        fact = e.PackingProfiled(device=self._slot.device, **(profile or refused))
        self._slot.outbox.put(self.lanes[number].claim, [fact])
        self._is_new = False

    def _note(self, refusal: str) -> None:
        if refusal and not self.refusal:
            logger.warning("chains that were to be packed are trained one after the other: %s", refusal)
        self.refusal = refusal


class Groups:
    """Makes the groups of a slot out of what it has claimed."""

    def __init__(self, slot: SlotContext) -> None:
        self._slot = slot
        self._breaks = Counter[str]()  # of packs, in a row, by plan

    def of(self, claimed: Sequence[Claimed]) -> list[LaneGroup]:
        """One group; of a pack that is not to be one any more, several, to be trained one after the other."""
        if not claimed[0].work.pack:
            return [self._single(each) for each in claimed]
        if self._breaks[claimed[0].work.plan] >= MOST_BREAKS:
            return [self._single(each, WITHOUT_PACK) for each in claimed]
        return [self._pack(claimed)]

    def note(self, group: LaneGroup) -> None:
        """It has been trained: how, tells how its plan is trained next time."""
        plan = group.lanes[0].work.plan
        if group.is_pack:
            self._breaks[plan] = self._breaks[plan] + 1 if group.is_broken else 0

    def _single(self, claimed: Claimed, *inexact_reasons: str) -> LaneGroup:
        slot, time, reader = self._slot, SharedTime(self._slot.given.clock, [0]), ReadOnce(self._slot.reader)
        its = LaneContext(claimed, slot.trainer, reader, partial(time.of, 0), inexact_reasons)
        lane = TrainingLane(slot, its) if claimed.work.proof is None else ProofLane(slot, its)
        return LaneGroup(slot, {0: lane}, {}, time, reader, awaits_messages=not claimed.work.pack)

    def _pack(self, claimed: Sequence[Claimed]) -> LaneGroup:
        slot, time = self._slot, SharedTime(self._slot.given.clock, range(len(claimed)))
        reader, models = ReadOnce(slot.reader), {n: PackedModel(slot.trainer, n) for n in range(len(claimed))}
        lanes = {
            number: TrainingLane(slot, LaneContext(each, models[number], reader, partial(time.of, number)))
            for number, each in enumerate(claimed)
        }
        return LaneGroup(slot, lanes, models, time, reader, awaits_messages=False)
