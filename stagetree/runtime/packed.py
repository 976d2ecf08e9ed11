"""The pack of a trainer's process: models that take their steps together, each at its own place in the plan."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence

from stagetree.packing import Lane, NotPackable, Pack, Profile, own_constants, share_constants
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.model import HpTimeline, Journal, Model

Failed = dict[int, TrainerFailed]
"""By the number of the lane: why its model cannot go on. The others are not concerned."""


class PackedModels:
    """width: how many there is room for. A model joins a pack with its first step here, and can leave between steps.

    Numbers name the models; they are the caller's. There is a pack for each shape that they have. What cannot be packed
    is trained by itself, whoever else is there: with the same numbers as without any pack.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._models: dict[int, Model] = {}
        self._lanes: dict[int, Lane] = {}
        self._packs: dict[Lane, Pack] = {}
        self._unpackable: dict[int, str] = {}
        self._evicted = set[int]()

    def __getitem__(self, number: int) -> Model:
        """Raises KeyError."""
        return self._models[number]

    def put(self, number: int, model: Model) -> None:
        """A model that is where its next step begins. Constants that others have, too, are held once from here on."""
        share_constants(model.trainer, [each.trainer for each in self._models.values()])
        self._models[number] = model

    @property
    def unpackable_reason(self) -> str:
        """Why one of them is not packed; empty if all are."""
        return next(iter(self._unpackable.values()), "")

    @property
    def evicted(self) -> list[int]:
        """Those that are not packed, though they could be: their numbers are not those that they have in a pack."""
        return sorted(self._evicted)

    def profile(self) -> Profile | None:
        """As `Pack.profile`, after a step; None where they cannot be packed, or all have left."""
        lane = next(iter(self._packs), None)
        return None if lane is None else self._packs[lane].profile(lane)

    def measure(self, number: int, timeline: HpTimeline, widest: int) -> Profile | None:
        """As `Pack.measure`, of a model before its first step; None where it cannot be packed. Raises `TrainerFailed`.

        It is trained no further.
        """
        for failure in self._set_up({number: timeline}).values():
            raise failure
        if (lane := self._lanes.get(number)) is not None:
            with user_code():
                try:
                    return self._packs[lane].measure(lane, widest)
                except NotPackable as reason:
                    self._refuse(number, reason)
        return None

    def leave(self, number: int) -> Model:
        """The model goes on by itself, or is no more. Before it is loaded anew it must have its own constants."""
        self._part(number)
        self._unpackable.pop(number, None)
        self._evicted.discard(number)
        return self._models.pop(number)

    def _part(self, number: int) -> None:
        lane = self._lanes.pop(number, None)
        if lane is not None:
            self._packs.pop(lane).leave(lane)

    @property
    def numbers(self) -> list[int]:
        """Of the models that are there."""
        return list(self._models)

    def advance(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        """Train one step of each of these; those whose own code failed have left.

        Raises `TrainerFailed` for what concerns all.
        """
        failed = self._set_up(timelines)
        failed |= self._together([number for number in timelines if number not in failed and number in self._lanes])
        refused = [number for number in timelines if number not in failed and number in self._unpackable]
        failed |= self._one_by_one({number: timelines[number] for number in refused})
        for number in failed:
            self.leave(number)
        for number, reason in [(number, lane.unpackable_reason) for number, lane in self._lanes.items()]:
            if reason is not None:  # from the next step on
                self._refuse(number, reason)
        return failed

    def _set_up(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        """Have their lanes where the coming step begins."""
        failed: Failed = {}
        for number, timeline in timelines.items():
            try:
                if number not in self._unpackable:
                    self._set_up_lane(number, timeline)
            except NotPackable as reason:
                self._refuse(number, reason)
            except TrainerFailed as failure:
                failed[number] = failure
        return failed

    def _set_up_lane(self, number: int, timeline: HpTimeline) -> None:
        """Raises `TrainerFailed`, `NotPackable`."""
        model = self._models[number]
        changes = timeline.changes(model.step)
        if model.step == 0 and number not in self._lanes:
            model.set_up(changes)  # only now there is an optimizer
            changes = {}
        if number not in self._lanes:
            self._join(number, model)
        if changes:
            with user_code():
                self._lanes[number].setup(changes)

    def _join(self, number: int, model: Model) -> None:
        for pack in (*dict.fromkeys(self._packs.values()), Pack(self.width)):
            lane = pack.join(model.trainer, model.device, model.generators)
            if lane is not None:
                self._lanes[number], self._packs[lane] = lane, pack
                break

    def _refuse(self, number: int, reason: NotPackable) -> None:
        self._part(number)
        own_constants(self._models[number].trainer)  # which its own code may write into, by itself
        self._unpackable[number] = str(reason)  # an error holds on to the memory of what it came from
        if not reason.is_own:
            self._evicted.add(number)

    def _together(self, numbers: Sequence[int]) -> Failed:
        """A step of those that can be packed."""
        failed: Failed = {}
        for pack in dict.fromkeys(self._packs.values()):
            lanes = {self._lanes[number]: number for number in numbers if self._packs[self._lanes[number]] is pack}
            with user_code():
                for lane, reason in pack.unpackable(list(lanes)).items():
                    self._refuse(lanes.pop(lane), reason)
                errors = pack.train(list(lanes))
            failed |= {lanes[lane]: _failure(error) for lane, error in errors.items()}
            for lane in lanes.keys() - errors.keys():
                self._models[lanes[lane]].advanced(lane.generators)
        return failed

    def _one_by_one(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        failed: Failed = {}
        for number, timeline in timelines.items():
            try:
                self._models[number].advance(timeline)
            except TrainerFailed as failure:
                failed[number] = failure
        return failed


def _failure(error: Exception) -> TrainerFailed:
    """Raises it where the device is broken, for all that are on it."""
    failure = TrainerFailed.of(error)
    if failure.kind == "device":
        raise failure
    return failure


Kind = tuple[object, ...]
"""What a model was built from, and the names of the hyper-parameters that it was set up with."""


class Lanes:
    """At most one pack at a time; the next one begins where nobody is left of the one before."""

    def __init__(self) -> None:
        self._models = PackedModels(0)
        self._kind: Kind = ()
        self._idle: list[Model] = []
        self._journals: dict[int, Journal] = {}

    def __getitem__(self, lane: int) -> Model:
        """Raises KeyError."""
        return self._models[lane]

    def get(self, lane: int) -> Model | None:
        return self._models[lane] if lane in self._models.numbers else None

    @property
    def unpackable_reason(self) -> str:
        """Why some of them are trained by themselves, if they are."""
        return self._models.unpackable_reason

    @property
    def evicted(self) -> list[int]:
        """As `PackedModels.evicted`."""
        return self._models.evicted

    def begin(self, kind: Kind, is_resumed: bool) -> Model | None:
        """A lane of a kind must be built: one that has left, if it must be loaded and there is one."""
        if kind == self._kind and is_resumed and self._idle:
            model = self._idle.pop()
            own_constants(model.trainer)
            return model
        if self._idle:
            _close(self._idle)
            self._idle.clear()
            gc.collect()  # or a cycle of references would keep their memory from the one that is built
        self._kind = kind
        return None

    def put(self, lane: int, model: Model, width: int) -> None:
        if not self._models.numbers:
            self._models = PackedModels(width)
        self._models.put(lane, model)

    def journal(self, lane: int) -> Journal:
        return self._journals.setdefault(lane, Journal())

    def advance(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        """As `PackedModels.advance`; what is logged is written from time to time."""
        failed = self._models.advance(timelines)
        now = time.monotonic()
        for lane in timelines.keys() - failed.keys():
            self.journal(lane).look(self._models[lane], now)
        return failed

    def profile(self) -> dict[str, object]:
        """What packs cost and whether they are exact, as JSON; nothing where the models cannot be packed."""
        return _as_json(self._models.profile())

    def measure(self, lane: int, timeline: HpTimeline, widest: int) -> dict[str, object]:
        """The same of packs of up to so many lanes, before the first step."""
        return _as_json(self._models.measure(lane, timeline, widest))

    def write_journals(self) -> None:
        """Raises `TrainerFailed`."""
        for lane in self._models.numbers:
            self.journal(lane).write(self._models[lane], time.monotonic())

    def drop(self, lanes: Iterable[int]) -> None:
        """These leave, and wait for being loaded anew. One that failed has left by itself."""
        for lane in set(lanes) & set(self._models.numbers):
            self._idle.append(self._models.leave(lane))
            if (journal := self._journals.pop(lane, None)) is not None:
                journal.write_to(-1)


def _as_json(profile: Profile | None) -> dict[str, object]:
    if profile is None:
        return {}
    costs = {"0": profile.alone, **{str(width): cost for width, cost in profile.packed.items()}}
    return {
        "batch_seconds": {lanes: round(cost.seconds, 7) for lanes, cost in costs.items()},
        "peak_bytes": {lanes: cost.bytes for lanes, cost in costs.items() if cost.bytes},
        "exact": profile.is_exact,
        "other_draws": profile.other_draws,
        "batch": dict(profile.batch),
    }


def _close(models: Iterable[Model]) -> None:
    for model in models:
        try:
            model.trainer.close()
        except Exception:  # the next model, which may be another trial's, is not to blame
            traceback.print_exc()
