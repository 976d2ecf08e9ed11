"""Trainers that make their steps together, each in an independent lane.

A lane computes the same bits whichever other lanes there are: see `stagetree.packing.loss`. Lanes at the same batch
with the same random numbers share a pass, for which the batch is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stagetree.packing.constants import has_constants
from stagetree.packing.fallback import FallbackStep
from stagetree.packing.gradient_check import GradientCheck
from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult
from stagetree.packing.packability import NotPackable, explain_error
from stagetree.packing.profiling import Profile, Profiler
from stagetree.packing.rows import LaneBatches, log_rows
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer, joins
from stagetree.trainer import Trainer, generators
from stagetree.trainer.generators import GeneratorStates

Failures = dict[Lane, Exception]
Unpackable = dict[Lane, NotPackable]


class PackedStep:
    """The stack of a pack and its steps. like: a lane with the shape of all lanes.

    Every pass has the same number of rows, whichever lanes are there. With another number a device picks other kernels,
    and a lane's last bits would depend on the number of lanes.
    """

    def __init__(self, like: Lane, width: int) -> None:
        model, groups = like.model, like.trainer.optimizer.param_groups
        self.stack = Stack(model, [group["params"] for group in groups], width, has_constants(like.trainer))
        self._stacked = StackedOptimizer(self.stack)
        self._fallback = FallbackStep(self.stack)
        self._gradient_check = GradientCheck(self.stack, self._fallback)
        self.profiler = Profiler(self.stack, self._fallback, self._stacked)
        self._checked: dict[Lane, Any] = {}

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._stacked.leave(lane.number)
        self.stack.release(lane.number, lane.model)

    # ------------------------------------------------------------------------------------------------ learning

    def backward(self, bucket: Sequence[Lane]) -> Failures:
        """Compute the gradients of lanes with one batch key on their next batch. Returns the lanes that failed.

        Raises the error of reading the batch, which concerns all of them.
        """
        lead, failures = bucket[0], Failures()
        span = lead.next_batch()
        parts = _own_parts(bucket) if lead.has_own_batches else lead.read(span)
        for number, (batch, share) in enumerate(parts):
            left = [lane for lane in bucket if lane not in failures]
            for lanes, outcome in self._fallback.outcomes(left, batch, share) if left else ():
                if isinstance(outcome, Exception):
                    failures |= dict.fromkeys(lanes, outcome)
                else:
                    self._take(lanes, outcome, add=number > 0)
                del outcome  # so that the next pass reuses its memory
        lead.advance(span)
        for lane in bucket[1:]:
            lane.follow(lead, span)
        return failures

    def _take(self, lanes: Sequence[Lane], result: BackwardResult, add: bool) -> None:
        numbers = _numbers(lanes)
        rows = result.rows(numbers)
        self.stack.write_gradients(numbers, rows, result.gradients, add)
        self.stack.write_buffers(numbers, rows, result.buffers, result.flat_buffers)
        if not result.sums:
            return
        sums = {name: each[: self.stack.width] for name, each in result.sums.items()}
        log_rows({lane.logged_sums: row for lane, row in zip(lanes, rows, strict=True)}, sums, result.counts)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Update the parameters from the gradients. Returns the lanes whose own code failed."""
        joint = {lane: None for lane in bucket if not lane.updates_itself and joins(self._stacked, lane)}
        if joint:
            longest = bucket[0].trainer.clip_grad_norm
            self.stack.clip_gradients(longest, _numbers(joint))
        errors = self._stacked.step(_numbers(joint))
        failures = {lane: errors[lane.number] for lane in joint if lane.number in errors}
        for lane in bucket:
            if lane in failures:
                continue
            try:
                lane.finish(is_stepped=lane in joint)
            except Exception as error:
                failures[lane] = error
        return failures

    # ------------------------------------------------------------------------------------------------ looking first

    def check(self, bucket: Sequence[Lane]) -> Unpackable:
        """Returns the lanes that cannot train in passes, of lanes with one batch key; each is checked once.

        The result depends on each lane separately and not on its weights. A lane whose gradients differ from the first
        lane's is excluded from shared passes. Changes nothing else.
        """
        if all(self._checked.get(lane) == lane.batch_key for lane in bucket):
            return {}
        try:
            mismatches = self._gradient_check.mismatches(bucket)
        except NotPackable as reason:
            return {bucket[0]: reason, **(self.check(bucket[1:]) if len(bucket) > 1 else {})}
        self._checked.update({lane: lane.batch_key for lane in bucket if lane not in mismatches})
        refusals: Unpackable = {}
        for lane in mismatches:
            if len(bucket) == 1:
                return {lane: self._gradient_check.explain_mismatch(lane)}
            lane.is_excluded = True
            refusals |= self.check([lane])
        return refusals


def _own_parts(bucket: Sequence[Lane]) -> Iterator[tuple[LaneBatches, float]]:
    """The parts of the batches that lanes read themselves, of one structure, with their share of the samples."""
    for parts in zip(*(lane.read(lane.next_batch()) for lane in bucket), strict=True):
        yield LaneBatches((lane.number, batch) for lane, (batch, _) in zip(bucket, parts, strict=True)), parts[0][1]


def _numbers(lanes: Iterable[Lane]) -> list[int]:
    return [lane.number for lane in lanes]


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
        if self._step is None:
            try:
                self._step = PackedStep(lane, self.width)
            except Exception as error:
                raise explain_error(error) from error
        if not self._step.stack.holds(lane.model):
            return None
        self._step.stack.adopt(lane.number, lane.model)
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
        refusals = map(self._step.check, group_by_batch_key(lanes))
        return {lane: reason for each in refusals for lane, reason in each.items()}

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
            try:
                failures |= self._step.backward(bucket)
            except Exception as error:  # reading the shared batch failed
                failures |= dict.fromkeys(bucket, error)
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
