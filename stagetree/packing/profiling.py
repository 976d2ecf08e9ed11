"""Measures the cost of a step, alone and in packs, before a width is chosen and for the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stagetree.packing.fallback import FallbackStep
from stagetree.packing.lane import Lane
from stagetree.packing.lane_optimizer import rehearse_own_step
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.packability import explain_error, is_out_of_memory
from stagetree.packing.recordings import Recordings
from stagetree.packing.rows import lane_batch
from stagetree.packing.stable_width import StableWidth, stable_width
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer, joins
from stagetree.trainer import generators

MIN_SECONDS = 0.1
"""Repeat a computation for at least this long: other load slows some rounds, and seldom all."""


@dataclass(frozen=True, slots=True)
class PackCost:
    """seconds: of the fastest round. bytes: peak memory on the device; 0 on a CPU."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The cost of a step of one batch. alone: of the model by itself. packed: of full packs, by number of lanes. batch:
    the hyper-parameters that decided the batch. is_exact: the widest pack gave the gradients, buffers and
    optimizer steps of the model alone, bit for bit, on batches of this shape. other_draws: see `Lane.other_draws`."""

    alone: PackCost
    packed: Mapping[int, PackCost]
    batch: Mapping[str, Any]
    is_exact: bool = False
    other_draws: str = ""


def widths_below(width: int) -> list[int]:
    """The powers of two from 2 up to below `width`."""
    return [2**power for power in range(1, (width - 1).bit_length())]


def measure_cost(compute: Callable[[], object], device: str) -> PackCost:
    """The cost of a computation on a device."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    _seconds(compute, device)  # warm up: memory is allocated and kernels are chosen
    rounds = [_seconds(compute, device)]
    while sum(rounds) < MIN_SECONDS:
        rounds.append(_seconds(compute, device))
    return PackCost(min(rounds), 0 if device == "cpu" else torch.cuda.max_memory_allocated(device))


def _seconds(compute: Callable[[], object], device: str) -> float:
    _wait_for(device)
    begun_at = time.perf_counter()
    compute()
    _wait_for(device)
    return time.perf_counter() - begun_at


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


class Profiler:
    """Measures lanes of one stack, without changing it."""

    def __init__(self, stack: Stack, attempts: FallbackStep, stacked: StackedOptimizer) -> None:
        self._stack, self._fallback, self._stacked = stack, attempts, stacked

    def profile(self, lane: Lane) -> Profile:
        """The cost of a lane's next batch for its model alone, and for full packs of this width and of narrower
        ones."""
        with generators.preserve(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = lane.first_batch()
            alone = self._alone_cost(lane, batch)
            groups = self._fallback.groups([lane] * self._stack.width, batch)
            full = self._full_pack_cost(
                lane, lambda: [self._join_gradients(self._fallback.run_recorded(lanes, batch)) for lanes in groups]
            )
            room, packed = stable_width(self._stack, lane, batch), {self._stack.width: full}
            for width in self._widths_below(self._stack.width):
                with suppress(torch.OutOfMemoryError, MemoryError):  # the pack itself has taken memory
                    packed[width] = self._pack_cost(lane, batch, room, width)
            is_exact = room.exact and lane.trainer.clip_grad_norm is None and self._matches_torch(lane)
        return Profile(alone, dict(sorted(packed.items())), lane.batch_hp, is_exact, lane.other_draws)

    def measure(self, lane: Lane, widest: int) -> Profile:
        """The cost of a lane's next batch for its model alone, and for packs of up to `widest` lanes, in rising order.

        The stack need not have room for them. Stops when a wider pack costs no less per lane, or memory is exhausted.
        Raises `NotPackable`.
        """
        with generators.preserve(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = lane.first_batch()
            alone = self._alone_cost(lane, batch)
            room = stable_width(self._stack, lane, batch)
            packed: dict[int, PackCost] = {}
            least = math.inf
            for width in (*self._widths_below(widest), widest):
                try:
                    packed[width] = self._pack_cost(lane, batch, room, width)
                except Exception as error:
                    if packed and is_out_of_memory(error):
                        break
                    raise explain_error(error) from error
                if packed[width].seconds / width >= least:
                    break
                least = packed[width].seconds / width
        return Profile(alone, packed, lane.batch_hp, other_draws=lane.other_draws)

    def _widths_below(self, width: int) -> list[int]:
        """Includes 1 if passes are recorded: a pack of one gains only from the recording."""
        is_recorded = Recordings(self._stack.device).is_on and width > 1
        return [1] * is_recorded + widths_below(width)

    def _matches_torch(self, lane: Lane) -> bool:
        is_stacked = not lane.updates_itself and joins(self._stacked, lane)
        return not is_stacked or self._stacked.matches_torch(lane.trainer.optimizer)

    def _alone_cost(self, lane: Lane, batch: Any) -> PackCost:
        step = rehearse_own_step(lane.trainer.optimizer)
        own = lane_batch(batch, lane.number)
        return measure_cost(lambda: (_read(lane), Loss(lane.trainer).run_alone(own), step()), lane.device)

    def _pack_cost(self, lane: Lane, batch: Any, room: StableWidth, lanes: int) -> PackCost:
        """The cost of a step of a narrower pack."""
        if room.is_single:
            one = partial(self._fallback.run_packed, [lane], batch)
            return self._step_cost(lane, lambda: [self._join_gradients(one()) for _ in range(lanes)], lanes)
        rows = lanes + room.rows - room.lanes  # padding rows have gradients and no optimizer
        numbers, recordings = [lane.number] * rows, Recordings(self._stack.device)
        compute = lambda batch: Loss(lane.trainer).run_packed(self._stack.rows(numbers), batch)  # noqa: E731
        return self._step_cost(lane, lambda: self._join_gradients(recordings.result("", compute, batch)), lanes)

    def _full_pack_cost(self, lane: Lane, passes: Callable[[], object]) -> PackCost:
        """The cost of a full pack; without the optimizers if memory is short for another one."""
        try:
            return self._step_cost(lane, passes, self._stack.width)
        except (torch.OutOfMemoryError, MemoryError):
            return measure_cost(passes, lane.device)

    def _step_cost(self, lane: Lane, passes: Callable[[], object], lanes: int) -> PackCost:
        """The cost of reading the batch, the passes, and the optimizer's step on copies."""
        optimizer = lane.trainer.optimizer
        step = self._stacked.rehearse_step(lane.model, optimizer, lanes)
        if step is None:
            each = rehearse_own_step(optimizer)
            step = lambda: [each() for _ in range(lanes)]  # noqa: E731
        reads = lanes if lane.has_own_batches else 1
        return measure_cost(lambda: ([_read(lane) for _ in range(reads)], passes(), step()), lane.device)

    def _join_gradients(self, result: BackwardResult) -> object:
        """Copy the gradients as the optimizers read them; the stack stays unchanged."""
        return [segment.join(result.gradients) for segment in self._stack.segments]


def _read(lane: Lane) -> object:
    """Read the next batch, unless worker processes prefetch it."""
    return None if lane.is_read_ahead else lane.first_batch()
