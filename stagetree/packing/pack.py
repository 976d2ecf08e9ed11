"""Trainers that make their steps together: a lane of the pack each, none of which notices the others.

What a lane computes is to the bit the same whoever else is there: see `stagetree.packing.loss`. Lanes that are
at the same batch with the same random numbers share a pass, for which the batch is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stagetree.packing.lane import Generators, Lane
from stagetree.packing.packed_step import Failures, PackedStep, Unpackable
from stagetree.packing.profiling import Profile
from stagetree.packing.refusals import meaning
from stagetree.trainer import Trainer, generators


class Pack:
    """width: for how many lanes there is room. lanes: those that are there."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lanes: list[Lane] = []
        self._step: PackedStep | None = None

    def join(self, trainer: Trainer, device: str, at: Generators) -> Lane | None:
        """A trainer that has been set up, and loaded, trains with the others from its next step on.

        None if its model has another shape. at: where the global generators must be then. Raises `NotPackable`, also
        where there is no memory for the pack; the trainer is as it was.
        """
        numbers = {lane.number for lane in self.lanes}
        number = next((number for number in range(self.width) if number not in numbers), None)
        if number is None:
            raise ValueError(f"all {self.width} lanes of the pack are taken")
        lane = Lane(trainer, device, at, number)
        self._step = self._step or _room_for(lane, self.width)
        if not self._step.hold(lane):
            return None
        self._step.adopt(lane)
        self.lanes.append(lane)
        return lane

    def leave(self, lane: Lane) -> None:
        """Its trainer goes on alone, or is no more."""
        self.lanes.remove(lane)
        assert self._step is not None  # or it would not be here
        self._step.release(lane)

    def unpackable(self, lanes: Sequence[Lane]) -> Unpackable:
        """Those of these lanes that cannot be trained in a pack, and why, before their next step."""
        assert self._step is not None
        return {
            lane: reason for bucket in group_by_batch_key(lanes) for lane, reason in self._step.check(bucket).items()
        }

    def train(self, lanes: Sequence[Lane]) -> Failures:
        """One step of each of these lanes; those that failed, which are somewhere within that step.

        A lane that could learn only without the others has an `unpackable_reason` from here on: see `FallbackStep`.
        """
        failures: Failures = {}
        left = {lane: lane.batches() for lane in lanes}
        while left:
            for bucket in group_by_batch_key(left):
                done = 1 if any(lane.has_hooks or lane.has_own_batches for lane in bucket) else left[bucket[0]]
                for alike in self._by_form(bucket, failures):
                    failures |= self._run(alike, done)
                left.update({lane: left[lane] - done for lane in bucket})
            left = {lane: batches for lane, batches in left.items() if batches and lane not in failures}
        return failures

    def profile(self, lane: Lane) -> Profile:
        """Of models like that of a lane that has made a step. Nothing is changed."""
        assert self._step is not None
        return self._step.profiler.profile(lane)

    def measure(self, lane: Lane, widest: int) -> Profile:
        """As `profile`, of packs of up to so many lanes, for a lane before its first step. Raises `NotPackable`."""
        assert self._step is not None
        for reason in self.unpackable([lane]).values():
            raise reason
        return self._step.profiler.measure(lane, widest)

    def _by_form(self, bucket: list[Lane], failures: Failures) -> list[list[Lane]]:
        """Lanes with batches of their own, in buckets of which all learn from equal shapes, and draw as much."""
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
        """So many batches, for lanes that are alike, and stay so at least between them."""
        assert self._step is not None
        failures, device = Failures(), bucket[0].device
        generators.restore(bucket[0].generators, device)
        for left in reversed(range(batches)):
            failures |= self._backward(bucket)
            bucket = [lane for lane in bucket if lane not in failures]
            if not left:
                _stand_at(generators.state(device), bucket)
            failures |= self._step.update(bucket)
            bucket = [lane for lane in bucket if lane not in failures]
            if not bucket:
                break
        return failures

    def _backward(self, bucket: list[Lane]) -> Failures:
        assert self._step is not None
        try:
            return self._step.backward(bucket)
        except Exception as error:  # the batch cannot be read, and they have the same one
            return dict.fromkeys(bucket, error)


def _room_for(lane: Lane, width: int) -> PackedStep:
    try:
        return PackedStep(lane, width)
    except Exception as error:
        raise meaning(error) from error


def _stand_at(at: Generators, lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.generators = at


def group_by_batch_key(lanes: Iterable[Lane]) -> list[list[Lane]]:
    """The lanes in buckets, each of lanes that can share a pass, in the order of their rows."""
    buckets: list[list[Lane]] = []
    for lane in sorted(lanes, key=lambda lane: lane.number):
        bucket = next((bucket for bucket in buckets if bucket[0].shares_batch_with(lane)), None)
        if bucket is None:
            buckets.append([lane])
        else:
            bucket.append(lane)
    return buckets
