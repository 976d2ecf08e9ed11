"""A step of all lanes of a stack: one backward pass over their batch, and one step of their optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stagetree.packing.fallback import FallbackStep
from stagetree.packing.lane import Lane
from stagetree.packing.likeness import Likeness
from stagetree.packing.loss import BackwardResult
from stagetree.packing.profiling import Profiler
from stagetree.packing.refusals import NotPackable
from stagetree.packing.rows import OwnBatches, log
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer, joins

Failures = dict[Lane, Exception]
Unpackable = dict[Lane, NotPackable]


class PackedStep:
    """The stack of a pack and its steps. like: a lane of the shape that all lanes have.

    Every pass has the same number of rows, whoever is there: with another one a device picks other kernels, and a lane
    would differ in its last bits by how many others there are.
    """

    def __init__(self, like: Lane, width: int) -> None:
        model, groups = like.model, like.trainer.optimizer.param_groups
        self._stack = Stack(model, [group["params"] for group in groups], width, like.has_constants)
        self._stacked = StackedOptimizer(self._stack)
        self._fallback = FallbackStep(self._stack)
        self._likeness = Likeness(self._stack, self._fallback)
        self.profiler = Profiler(self._stack, self._fallback, self._stacked)
        self._checked: dict[Lane, Any] = {}

    def hold(self, lane: Lane) -> bool:
        """Whether a lane has the shape of those here."""
        return self._stack.holds(lane.model)

    def adopt(self, lane: Lane) -> None:
        self._stack.adopt(lane.number, lane.model)

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._stacked.leave(lane.number)
        self._stack.release(lane.number, lane.model)

    # ------------------------------------------------------------------------------------------------ learning

    def backward(self, bucket: Sequence[Lane]) -> Failures:
        """Compute the gradients of lanes with one batch key on their next batch; the lanes that failed, with the error.

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
                del outcome  # or the next pass had other memory
        lead.pass_by(span)
        for lane in bucket[1:]:
            lane.follow(lead, span)
        return failures

    def _take(self, lanes: Sequence[Lane], result: BackwardResult, add: bool) -> None:
        numbers = _numbers(lanes)
        rows = result.rows(numbers)
        self._stack.put(numbers, rows, result.gradients, add)
        self._stack.put_buffers(numbers, rows, result.buffers, result.flat_buffers)
        if not result.sums:
            return
        sums = {name: each[: self._stack.width] for name, each in result.sums.items()}
        log({lane.logged: row for lane, row in zip(lanes, rows, strict=True)}, sums, result.counts)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Change the parameters by their gradients; the lanes whose own code failed meanwhile."""
        joint = {lane: None for lane in bucket if not lane.updates_itself and joins(self._stacked, lane)}
        if joint:
            longest = bucket[0].trainer.clip_grad_norm
            self._stack.clip_gradients(longest, _numbers(joint))
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
        """The lanes, of some with one batch key, that cannot train in passes; each is checked once.

        The result depends on each lane by itself, and not on its weights. A lane whose gradients are not those of the
        first one in its place is excluded from here on. Nothing else is changed.
        """
        if all(self._checked.get(lane) == lane.batch_key for lane in bucket):
            return {}
        try:
            unlike = self._likeness.unlike(bucket)
        except NotPackable as reason:
            return {bucket[0]: reason, **(self.check(bucket[1:]) if len(bucket) > 1 else {})}
        self._checked.update({lane: lane.batch_key for lane in bucket if lane not in unlike})
        refusals: Unpackable = {}
        for lane in unlike:
            if len(bucket) == 1:
                return {lane: self._likeness.difference(lane)}
            lane.is_excluded = True
            refusals |= self.check([lane])
        return refusals


def _own_parts(bucket: Sequence[Lane]) -> Iterator[tuple[OwnBatches, float]]:
    """The parts of the batch that each lane reads, of one form, with their share of the samples."""
    for parts in zip(*(lane.read(lane.next_batch()) for lane in bucket), strict=True):
        yield OwnBatches((lane.number, batch) for lane, (batch, _) in zip(bucket, parts, strict=True)), parts[0][1]


def _numbers(lanes: Iterable[Lane]) -> list[int]:
    return [lane.number for lane in lanes]
