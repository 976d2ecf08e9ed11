"""The gradients of lanes on a batch: by one pass, or lane by lane where it fails, so that no lane fails for others.

A pass fails for all lanes in it: the loss raises, or there is too little memory for so many models. Then each lane gets
a pass of its own with as many rows, which gives it the same bits. Where that fails, too, its model computes its
gradients as it does without a pack, with other last bits.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.recordings import Recordings
from stagetree.packing.refusals import is_out_of_memory, late
from stagetree.packing.rows import OwnBatches, batch_of, form_of
from stagetree.packing.stable_width import StableWidth, stable_width
from stagetree.packing.stack import Stack
from stagetree.trainer import generators

Outcome = BackwardResult | Exception

logger = logging.getLogger(__name__)


class FallbackStep:
    """The passes over one stack; they change nothing in it."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._recordings = stack, Recordings(stack.device)

    def outcomes(self, bucket: Sequence[Lane], batch: Any, share: float) -> Iterator[tuple[Sequence[Lane], Outcome]]:
        """The gradients of lanes with one batch key on a batch, or `OwnBatches`, times `share`, or the error.

        A lane that has learned without a pass takes part in none any more: its `unpackable_reason` says why. An outcome
        that the caller drops leaves the next pass its memory, which a core's cache still holds.
        """
        draws = _Draws(bucket[0].device)
        refused = [lane for lane in bucket if lane.unpackable_reason is not None]
        for lanes in self.groups([lane for lane in bucket if lane.unpackable_reason is None], batch):
            outcome = self._outcome(draws, partial(self.recorded, lanes, batch, share))
            if isinstance(outcome, Exception):
                for lane in lanes:
                    error = outcome if len(lanes) == 1 else None
                    yield [lane], self._by_itself(lane, error, draws, batch, share)
            else:
                yield lanes, outcome
            del outcome
        for lane in refused:
            yield [lane], draws.outcome(partial(Loss(lane.trainer).by_itself, batch_of(batch, lane.number), share))

    def _outcome(self, draws: _Draws, attempt: Callable[[], BackwardResult]) -> BackwardResult | Exception:
        """Once more without recordings, if there is too little memory beside them."""
        outcome = draws.outcome(attempt)
        if isinstance(outcome, Exception) and is_out_of_memory(outcome) and self._recordings.give_up():
            logger.warning("passes are computed each time, and not recorded: there is too little memory beside them")
            return draws.outcome(attempt)
        return outcome

    def groups(self, lanes: Sequence[Lane], batch: Any) -> list[Sequence[Lane]]:
        """As many as fit into a pass, each."""
        if not lanes:
            return []
        try:
            size = stable_width(self._stack, lanes[0], batch).lanes
        except Exception:  # which the pass of each will raise again
            size = 1
        return [lanes[begin : begin + size] for begin in range(0, len(lanes), size)]

    def recorded(self, lanes: Sequence[Lane], batch: Any, share: float = 1.0) -> BackwardResult:
        """As `packed`, played from a recording where there is one: the next pass may overwrite the result."""
        lead = lanes[0]
        room = stable_width(self._stack, lead, batch)
        if lead.has_hooks or not room.rows == room.lanes == self._stack.width:  # else some tensors are made anew
            return self._pass(room, lanes, batch, share)
        numbers = [lane.number for lane in lanes]
        own = batch.of(numbers) if isinstance(batch, OwnBatches) else batch
        key = (id(lead.trainer), lead.batch_key, share, form_of(own))
        return self._recordings.result(key, lambda batch: self._pass(room, lanes, batch, share), own)

    def packed(self, lanes: Sequence[Lane], batch: Any, share: float = 1.0) -> BackwardResult:
        """By one pass, over all lanes of the stack in their places: what others would learn there, nobody reads.

        Rows behind those of lanes have the first one again. Where a pass has room for fewer, these are the first ones,
        and the rest is the first of them again. Of large models on a CPU it is the one lane's own. Raises whatever the
        loss does.
        """
        return self._pass(stable_width(self._stack, lanes[0], batch), lanes, batch, share)

    def _pass(self, room: StableWidth, lanes: Sequence[Lane], batch: Any, share: float) -> BackwardResult:
        lead = lanes[0]
        if room.is_apart:
            return Loss(lead.trainer).by_itself(batch_of(batch, lead.number), share)
        numbers = [*range(self._stack.width)] if room.lanes >= self._stack.width else [lane.number for lane in lanes]
        behind = room.rows - len(numbers)
        rows = self._stack.rows(numbers + numbers[:1] * behind if behind or room.lanes < self._stack.width else None)
        own = batch.of([lane.number for lane in lanes]) if isinstance(batch, OwnBatches) else batch
        return Loss(lead.trainer).packed(rows, own, share)

    def _by_itself(self, lane: Lane, error: Exception | None, draws: _Draws, batch: Any, share: float) -> Outcome:
        """error: why its pass has failed, if it was in one by itself."""
        if error is None:
            outcome = draws.outcome(partial(self.packed, [lane], batch, share))
            if not isinstance(outcome, Exception):
                return outcome
            error = outcome
        outcome = draws.outcome(partial(Loss(lane.trainer).by_itself, batch_of(batch, lane.number), share))
        if not isinstance(outcome, Exception):
            lane.unpackable_reason = late(error)
        return outcome


class _Draws:
    """Runs attempts that all begin with the generators as they are; the first success says where they end."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._begin = generators.mark(device)
        self._end: generators.Mark | None = None
        self._succeeded = False

    def outcome(self, attempt: Callable[[], BackwardResult]) -> Outcome:
        """An error holds on to nothing that was computed: there may be no memory left for the next attempt."""
        if self._succeeded:
            self._end = self._end or generators.mark(self._device)
            generators.go_back(self._begin, self._device)
        try:
            result = attempt()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            generators.go_back(self._end or self._begin, self._device)
            return error
        self._succeeded = True
        return result
