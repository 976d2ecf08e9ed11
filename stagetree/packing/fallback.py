"""Gradients of lanes on a batch: by one packed pass, or lane by lane if that fails, so that lanes fail
independently.

A pass fails for all of its lanes when the loss raises or memory runs out. Each lane then gets a pass of its own with
the same number of rows, which gives the same bits. If that fails too, its model computes its gradients without a pack,
whose last bits differ.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.packability import explain_late_error, is_out_of_memory
from stagetree.packing.recordings import Recordings
from stagetree.packing.rows import LaneBatches, batch_structure, lane_batch
from stagetree.packing.stable_width import StableWidth, stable_width
from stagetree.packing.stack import Stack
from stagetree.trainer import generators

Outcome = BackwardResult | Exception

logger = logging.getLogger(__name__)


class FallbackStep:
    """The backward passes over one stack. They do not change it."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._recordings = stack, Recordings(stack.device)

    def outcomes(self, bucket: Sequence[Lane], batch: Any, share: float) -> Iterator[tuple[Sequence[Lane], Outcome]]:
        """Yield the gradients of lanes with one batch key, times `share`, or the error.

        batch: shared by the lanes, or `LaneBatches`. A lane that fell back to computing without a pass stays out of
        passes; its `unpackable_reason` says why. Drop each outcome before asking for the next, so that the next pass
        reuses its memory.
        """
        draws = _Attempts(bucket[0].device)
        refused = [lane for lane in bucket if lane.unpackable_reason is not None]
        for lanes in self.groups([lane for lane in bucket if lane.unpackable_reason is None], batch):
            outcome = self._attempt(draws, partial(self.run_recorded, lanes, batch, share))
            if isinstance(outcome, Exception):
                for lane in lanes:
                    error = outcome if len(lanes) == 1 else None
                    yield [lane], self._run_separately(lane, error, draws, batch, share)
            else:
                yield lanes, outcome
            del outcome
        for lane in refused:
            yield (
                [lane],
                draws.outcome(partial(Loss(lane.trainer).run_separately, lane_batch(batch, lane.number), share)),
            )

    def _attempt(self, draws: _Attempts, attempt: Callable[[], BackwardResult]) -> BackwardResult | Exception:
        """Run the attempt, and retry it without recordings if memory ran out beside them."""
        outcome = draws.outcome(attempt)
        if isinstance(outcome, Exception) and is_out_of_memory(outcome) and self._recordings.disable():
            logger.warning("passes are computed each time, and not recorded: there is too little memory beside them")
            return draws.outcome(attempt)
        return outcome

    def groups(self, lanes: Sequence[Lane], batch: Any) -> list[Sequence[Lane]]:
        """The lanes in groups that fit into one pass."""
        if not lanes:
            return []
        try:
            size = stable_width(self._stack, lanes[0], batch).lanes
        except Exception:  # which the pass of each will raise again
            size = 1
        return [lanes[begin : begin + size] for begin in range(0, len(lanes), size)]

    def run_recorded(self, lanes: Sequence[Lane], batch: Any, share: float = 1.0) -> BackwardResult:
        """As `run_packed`, replayed from a recording if there is one: the next pass may overwrite the result."""
        lead = lanes[0]
        room = stable_width(self._stack, lead, batch)
        if lead.has_hooks or not room.rows == room.lanes == self._stack.width:  # these allocate new tensors
            return self._run_pass(room, lanes, batch, share)
        numbers = [lane.number for lane in lanes]
        own = batch.select(numbers) if isinstance(batch, LaneBatches) else batch
        key = (id(lead.trainer), lead.batch_key, share, batch_structure(own))
        return self._recordings.result(key, lambda batch: self._run_pass(room, lanes, batch, share), own)

    def run_packed(self, lanes: Sequence[Lane], batch: Any, share: float = 1.0) -> BackwardResult:
        """The gradients by one pass over all rows of the stack; rows of other lanes are computed and ignored.

        Padding rows repeat the first lane. If the pass has room for fewer lanes than the stack, it takes these first.
        Large models on a CPU run one lane at a time. Raises the errors of the loss.
        """
        return self._run_pass(stable_width(self._stack, lanes[0], batch), lanes, batch, share)

    def _run_pass(self, room: StableWidth, lanes: Sequence[Lane], batch: Any, share: float) -> BackwardResult:
        lead = lanes[0]
        if room.is_single:
            return Loss(lead.trainer).run_separately(lane_batch(batch, lead.number), share)
        numbers = [*range(self._stack.width)] if room.lanes >= self._stack.width else [lane.number for lane in lanes]
        behind = room.rows - len(numbers)
        rows = self._stack.rows(numbers + numbers[:1] * behind if behind or room.lanes < self._stack.width else None)
        own = batch.select([lane.number for lane in lanes]) if isinstance(batch, LaneBatches) else batch
        return Loss(lead.trainer).run_packed(rows, own, share)

    def _run_separately(
        self, lane: Lane, error: Exception | None, draws: _Attempts, batch: Any, share: float
    ) -> Outcome:
        """error: why the pass failed, if the lane was alone in it."""
        if error is None:
            outcome = draws.outcome(partial(self.run_packed, [lane], batch, share))
            if not isinstance(outcome, Exception):
                return outcome
            error = outcome
        outcome = draws.outcome(partial(Loss(lane.trainer).run_separately, lane_batch(batch, lane.number), share))
        if not isinstance(outcome, Exception):
            lane.unpackable_reason = explain_late_error(error)
        return outcome


class _Attempts:
    """Runs attempts that all start from the current generator states; the first success decides the final states."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._begin = generators.state(device)
        self._end: generators.GeneratorStates | None = None
        self._succeeded = False

    def outcome(self, attempt: Callable[[], BackwardResult]) -> Outcome:
        """The result, or the error without its frames, which would hold memory that the next attempt needs."""
        if self._succeeded:
            self._end = self._end or generators.state(self._device)
            generators.restore(self._begin, self._device)
        try:
            result = attempt()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            generators.restore(self._end or self._begin, self._device)
            return error
        self._succeeded = True
        return result
