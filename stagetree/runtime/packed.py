"""The pack of a trainer process: models that take their steps together, each at its own position in the plan."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence

from stagetree.packing import Lane, NotPackable, Pack, Profile, own_constants, share_constants
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.model import HpTimeline, Journal, Model

Failed = dict[int, TrainerFailed]
"""Errors by lane number. Other lanes are not affected."""


class PackedModels:
    """Models by the caller's numbers, with a pack for each of their shapes. width: the room for models.

    A model joins a pack with its first step here and can leave between steps. A model that cannot be packed is trained
    separately, with the same numbers as without any pack.
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

    def add(self, number: int, model: Model) -> None:
        """Add a model before its next step. Constants that others have too are shared."""
        share_constants(model.trainer, [each.trainer for each in self._models.values()])
        self._models[number] = model

    @property
    def unpackable_reason(self) -> str:
        """Why one of them is not packed; empty if all are."""
        return next(iter(self._unpackable.values()), "")

    @property
    def evicted(self) -> list[int]:
        """The models that are not packed although others like them are: their last bits differ from a pack's."""
        return sorted(self._evicted)

    def profile(self) -> Profile | None:
        """As `Pack.profile`, after a step; None if there is no packed model."""
        lane = next(iter(self._packs), None)
        return None if lane is None else self._packs[lane].profile(lane)

    def measure(self, number: int, timeline: HpTimeline, widest: int) -> Profile | None:
        """As `Pack.measure`, for a model before its first step; None if it cannot be packed. Raises `TrainerFailed`."""
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
        """Remove a model, which then has its own constants only after `own_constants`."""
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
        """The numbers of the models."""
        return list(self._models)

    def advance(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        """Train one step of each of these models. Those whose own code failed are removed.

        Raises `TrainerFailed` for errors that concern all.
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
        """Prepare the lanes for the coming step."""
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
            model.set_up(changes)  # creates the optimizer
            changes = {}
        if number not in self._lanes:
            for pack in (*dict.fromkeys(self._packs.values()), Pack(self.width)):
                lane = pack.join(model.trainer, model.device, model.generators)
                if lane is not None:
                    self._lanes[number], self._packs[lane] = lane, pack
                    break
        if changes:
            with user_code():
                self._lanes[number].setup(changes)

    def _refuse(self, number: int, reason: NotPackable) -> None:
        self._part(number)
        own_constants(self._models[number].trainer)  # its own code may write into them
        self._unpackable[number] = str(reason)  # as text: the error would keep tensors alive
        if not reason.is_own:
            self._evicted.add(number)

    def _together(self, numbers: Sequence[int]) -> Failed:
        """Train a step of the packed models."""
        failed: Failed = {}
        for pack in dict.fromkeys(self._packs.values()):
            lanes = {self._lanes[number]: number for number in numbers if self._packs[self._lanes[number]] is pack}
            with user_code():
                for lane, reason in pack.unpackable(list(lanes)).items():
                    self._refuse(lanes.pop(lane), reason)
                errors = pack.train(list(lanes))
            for lane, error in errors.items():
                failed[lanes[lane]] = failure = TrainerFailed.from_error(error)
                if failure.kind == "device":  # all share it
                    raise failure
            for lane in lanes.keys() - errors.keys():
                self._models[lanes[lane]].finish_step(lane.generators)
        return failed

    def _one_by_one(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        failed: Failed = {}
        for number, timeline in timelines.items():
            try:
                self._models[number].advance(timeline)
            except TrainerFailed as failure:
                failed[number] = failure
        return failed


Kind = tuple[object, ...]
"""What a model was built from, and the names of its hyper-parameters."""


class Lanes:
    """The lanes of one pack at a time; the next begins when all models of the last one have left."""

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
        """Why some models are trained separately."""
        return self._models.unpackable_reason

    @property
    def evicted(self) -> list[int]:
        """As `PackedModels.evicted`."""
        return self._models.evicted

    def begin(self, kind: Kind, is_resumed: bool) -> Model | None:
        """Start a lane of a kind. Returns an idle model to load, if there is one of the same kind."""
        if kind == self._kind and is_resumed and self._idle:
            model = self._idle.pop()
            own_constants(model.trainer)
            return model
        if self._idle:
            for model in self._idle:
                try:
                    model.trainer.close()
                except Exception:  # the next model may be another trial's, which this error does not concern
                    traceback.print_exc()
            self._idle.clear()
            gc.collect()  # free the idle models' reference cycles before the next model is built
        self._kind = kind
        return None

    def add(self, lane: int, model: Model, width: int) -> None:
        if not self._models.numbers:
            self._models = PackedModels(width)
        self._models.add(lane, model)

    def journal(self, lane: int) -> Journal:
        return self._journals.setdefault(lane, Journal())

    def advance(self, timelines: Mapping[int, HpTimeline]) -> Failed:
        """As `PackedModels.advance`; also writes logged values from time to time."""
        failed = self._models.advance(timelines)
        now = time.monotonic()
        for lane in timelines.keys() - failed.keys():
            self.journal(lane).look(self._models[lane], now)
        return failed

    def profile(self) -> dict[str, object]:
        """The cost of packs and whether they are exact, as JSON; empty if the models cannot be packed."""
        return _profile_json(self._models.profile())

    def measure(self, lane: int, timeline: HpTimeline, widest: int) -> dict[str, object]:
        """The same for packs of up to `widest` lanes, before the first step."""
        return _profile_json(self._models.measure(lane, timeline, widest))

    def write_journals(self) -> None:
        """Raises `TrainerFailed`."""
        for lane in self._models.numbers:
            self.journal(lane).write(self._models[lane], time.monotonic())

    def drop(self, lanes: Iterable[int]) -> None:
        """Remove these models and keep them for later loads. Failed ones have been removed before."""
        for lane in set(lanes) & set(self._models.numbers):
            self._idle.append(self._models.leave(lane))
            if (journal := self._journals.pop(lane, None)) is not None:
                journal.write_to(-1)


def _profile_json(profile: Profile | None) -> dict[str, object]:
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
