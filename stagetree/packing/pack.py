"""Trainers that make their steps together, each in an independent lane.

A lane computes the same bits whichever other lanes there are: see `stagetree.packing.loss`. Lanes at the same batch
with the same random numbers share a pass, for which the batch is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stagetree.packing.lane import Lane
from stagetree.packing.packability import explain_error
from stagetree.packing.packed_step import Failures, PackedStep, Unpackable
from stagetree.packing.profiling import Profile
from stagetree.trainer import Trainer, generators
from stagetree.trainer.generators import GeneratorStates


class Pack:
    """width: the number of lanes there is room for. lanes: the current ones."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lanes: list[Lane] = []
        self._step: PackedStep | None = None

    def join(self, trainer: Trainer, device: str, at: GeneratorStates) -> Lane | None:
        """Add a trainer that has been set up and loaded; it trains in the pack from its next step.

        None if its model has another shape. at: the global generator states for its next step. Raises `NotPackable`,
        also when memory is short; the trainer is then unchanged.
        """
        numbers = {lane.number for lane in self.lanes}
        number = next((number for number in range(self.width) if number not in numbers), None)
        if number is None:
            raise ValueError(f"all {self.width} lanes of the pack are taken")
        lane = Lane(trainer, device, at, number)
        self._step = self._step or _make_step(lane, self.width)
        if not self._step.hold(lane):
            return None
        self._step.adopt(lane)
        self.lanes.append(lane)
        return lane

    def leave(self, lane: Lane) -> None:
        """Remove a lane. Its trainer continues alone, or is dropped."""
        self.lanes.remove(lane)
        assert self._step is not None  # the lane is in the pack
        self._step.release(lane)

    def unpackable(self, lanes: Sequence[Lane]) -> Unpackable:
        """The lanes that cannot be trained in a pack, with the reasons, checked before their next step."""
        assert self._step is not None
        return {
            lane: reason for bucket in group_by_batch_key(lanes) for lane, reason in self._step.check(bucket).items()
        }

    def train(self, lanes: Sequence[Lane]) -> Failures:
        """Train one step of each of these lanes. Returns the lanes that failed; they are left in the middle of the
        step.

        A lane that could learn only outside a pass gets an `unpackable_reason`: see `FallbackStep`.
        """
        failures: Failures = {}
        left = {lane: lane.batches() for lane in lanes}
        while left:
            for bucket in group_by_batch_key(left):
                done = 1 if any(lane.has_hooks or lane.has_own_batches for lane in bucket) else left[bucket[0]]
                for alike in self._group_by_structure(bucket, failures):
                    failures |= self._run(alike, done)
                left.update({lane: left[lane] - done for lane in bucket})
            left = {lane: batches for lane, batches in left.items() if batches and lane not in failures}
        return failures

    def profile(self, lane: Lane) -> Profile:
        """The cost for models like that of a lane that has made a step. Changes nothing."""
        assert self._step is not None
        return self._step.profiler.profile(lane)

    def measure(self, lane: Lane, widest: int) -> Profile:
        """As `profile`, for packs of up to `widest` lanes, before the lane's first step. Raises `NotPackable`."""
        assert self._step is not None
        for reason in self.unpackable([lane]).values():
            raise reason
        return self._step.profiler.measure(lane, widest)

    def _group_by_structure(self, bucket: list[Lane], failures: Failures) -> list[list[Lane]]:
        """Group lanes with batches of their own by batch shapes and random draws."""
        if len(bucket) == 1 or not bucket[0].has_own_batches:
            return [bucket]
        generators.restore(bucket[0].generators, bucket[0].device)
        buckets = defaultdict[object, list[Lane]](list)
        for lane in bucket:
            try:
                buckets[lane.read_ahead()].append(lane)
            except Exception as error:
                failures[lane] = error
        return list(buckets.values())

    def _run(self, bucket: list[Lane], batches: int) -> Failures:
        """Train a number of batches of lanes that share passes."""
        assert self._step is not None
        failures, device = Failures(), bucket[0].device
        generators.restore(bucket[0].generators, device)
        for left in reversed(range(batches)):
            failures |= self._backward(bucket)
            bucket = [lane for lane in bucket if lane not in failures]
            if not left:
                at = generators.state(device)
                for lane in bucket:
                    lane.generators = at
            failures |= self._step.update(bucket)
            bucket = [lane for lane in bucket if lane not in failures]
            if not bucket:
                break
        return failures

    def _backward(self, bucket: list[Lane]) -> Failures:
        assert self._step is not None
        try:
            return self._step.backward(bucket)
        except Exception as error:  # reading the shared batch failed
            return dict.fromkeys(bucket, error)


def _make_step(lane: Lane, width: int) -> PackedStep:
    try:
        return PackedStep(lane, width)
    except Exception as error:
        raise explain_error(error) from error


def group_by_batch_key(lanes: Iterable[Lane]) -> list[list[Lane]]:
    """Group the lanes that can share a pass, in the order of their rows."""
    buckets: list[list[Lane]] = []
    for lane in sorted(lanes, key=lambda lane: lane.number):
        bucket = next((bucket for bucket in buckets if bucket[0].shares_batch_with(lane)), None)
        if bucket is None:
            buckets.append([lane])
        else:
            bucket.append(lane)
    return buckets
