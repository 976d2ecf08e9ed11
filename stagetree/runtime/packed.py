"""Models in one process that take their steps together, each at its own place in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.packing import Cost, Lane, NotPackable, Pack
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.model import Model
from stagetree.runtime.timeline import Timeline

Failed = dict[int, TrainerFailed]
"""By the number of the lane: why its model cannot go on. The others are not concerned."""


class PackedModels:
    """width: how many there is room for. A model joins the pack with its first step here, and can leave between steps.

    Numbers name the models; they are the caller's. refusal: why they are trained one after the other instead; empty
    where they are not.
    """

    def __init__(self, width: int) -> None:
        self.width, self.refusal = width, ""
        self._pack = Pack(width)
        self._models: dict[int, Model] = {}
        self._lanes: dict[int, Lane] = {}

    def __getitem__(self, number: int) -> Model:
        """Raises KeyError."""
        return self._models[number]

    def put(self, number: int, model: Model) -> None:
        """A model that is where its next step begins."""
        self._models[number] = model

    def profile(self) -> dict[int, Cost] | None:
        """As `Pack.profile`, after a step; None where they cannot be packed, or all have left."""
        lane = next(iter(self._lanes.values()), None)
        return None if lane is None else self._pack.profile(lane)

    def leave(self, number: int) -> Model:
        """The model goes on by itself, or is no more."""
        self._part(number)
        return self._models.pop(number)

    def _part(self, number: int) -> None:
        lane = self._lanes.pop(number, None)
        if lane is not None:
            self._pack.leave(lane)

    @property
    def numbers(self) -> list[int]:
        """Of the models that are there."""
        return list(self._models)

    def advance(self, timelines: Mapping[int, Timeline]) -> Failed:
        """Train one step of each of these; those whose own code failed have left.

        What cannot be packed is trained one after the other. Raises `TrainerFailed` for what concerns all.
        """
        if not self.refusal:
            try:
                return self._together(timelines)
            except NotPackable as reason:
                self.refusal = str(reason)
        return self._one_by_one(timelines)

    def _one_by_one(self, timelines: Mapping[int, Timeline]) -> Failed:
        failed: Failed = {}
        for number, timeline in timelines.items():
            self._part(number)
            try:
                self._models[number].advance(timeline)
            except TrainerFailed as failure:
                failed[number] = failure
        for number in failed:
            self.leave(number)
        return failed

    def _together(self, timelines: Mapping[int, Timeline]) -> Failed:
        """Raises `NotPackable`, before any of them has changed but by `setup`."""
        failed: Failed = {}
        for number, timeline in timelines.items():
            try:
                self._set_up(number, timeline)
            except TrainerFailed as failure:
                failed[number] = failure
        lanes = {self._lanes[number]: number for number in timelines if number not in failed}
        errors = self._train(list(lanes))
        failed |= {lanes[lane]: TrainerFailed.of(error) for lane, error in errors.items()}
        for lane, number in lanes.items():
            if number not in failed:
                self._models[number].advanced(lane.generators)
        for number in failed:
            self.leave(number)
        return failed

    def _train(self, lanes: list[Lane]) -> dict[Lane, Exception]:
        with user_code(but=NotPackable):
            return self._pack.train(lanes) if lanes else {}

    def _set_up(self, number: int, timeline: Timeline) -> None:
        """Have the lane where its coming step begins. Raises `TrainerFailed`, `NotPackable`."""
        model = self._models[number]
        changes = timeline.changes(model.step)
        if model.step == 0 and number not in self._lanes:
            model.set_up(changes)  # only now there is an optimizer
            changes = {}
        if number not in self._lanes:
            self._lanes[number] = self._pack.join(model.trainer, model.device, model.generators)
        if changes:
            self._change(self._lanes[number], changes)

    def _change(self, lane: Lane, changes: dict[str, Any]) -> None:
        with user_code():
            lane.setup(changes)
