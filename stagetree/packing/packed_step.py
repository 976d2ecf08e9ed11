"""One step of all lanes of a stack: a backward pass over their batch, and a step of their optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stagetree.packing.fallback import FallbackStep
from stagetree.packing.gradient_check import GradientCheck
from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult
from stagetree.packing.packability import NotPackable
from stagetree.packing.profiling import Profiler
from stagetree.packing.rows import LaneBatches, log_rows
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer, joins

Failures = dict[Lane, Exception]
Unpackable = dict[Lane, NotPackable]


class PackedStep:
    """The stack of a pack and its steps. like: a lane with the shape of all lanes.

    Every pass has the same number of rows, whichever lanes are there. With another number a device picks other kernels,
    and a lane's last bits would depend on the number of lanes.
    """

    def __init__(self, like: Lane, width: int) -> None:
        model, groups = like.model, like.trainer.optimizer.param_groups
        self._stack = Stack(model, [group["params"] for group in groups], width, like.has_constants)
        self._stacked = StackedOptimizer(self._stack)
        self._fallback = FallbackStep(self._stack)
        self._gradient_check = GradientCheck(self._stack, self._fallback)
        self.profiler = Profiler(self._stack, self._fallback, self._stacked)
        self._checked: dict[Lane, Any] = {}

    def hold(self, lane: Lane) -> bool:
        """Whether a lane's model has the shape of the stack."""
        return self._stack.holds(lane.model)

    def adopt(self, lane: Lane) -> None:
        self._stack.adopt(lane.number, lane.model)

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._stacked.leave(lane.number)
        self._stack.release(lane.number, lane.model)

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
        self._stack.write_gradients(numbers, rows, result.gradients, add)
        self._stack.write_buffers(numbers, rows, result.buffers, result.flat_buffers)
        if not result.sums:
            return
        sums = {name: each[: self._stack.width] for name, each in result.sums.items()}
        log_rows({lane.logged_sums: row for lane, row in zip(lanes, rows, strict=True)}, sums, result.counts)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Update the parameters from the gradients. Returns the lanes whose own code failed."""
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
