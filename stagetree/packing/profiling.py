"""The cost of a step, of a model alone and of packs: measured before a width is chosen, and said in results."""

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
from stagetree.packing.lane_optimizer import rehearsed_alone
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.recordings import Recordings
from stagetree.packing.refusals import is_out_of_memory, meaning
from stagetree.packing.rows import batch_of
from stagetree.packing.stable_width import StableWidth, stable_width
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer, joins
from stagetree.trainer import generators

SECONDS = 0.1
"""For so long a computation is repeated: others on the machine hold some rounds up, and seldom all."""


@dataclass(frozen=True, slots=True)
class PackCost:
    """seconds: of the shortest round. bytes: the most on the device; 0 on a CPU."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """alone: what a step of one batch costs a model by itself. packed: the same of full packs, by their lanes. batch:
    the hyper-parameters that decided which batch. is_exact: whether a model of the widest was found to have the
    gradients and buffers that it has alone, to the bit, on batches of that shape, and steps that are its optimizer's.
    other_draws: the first module that draws other random numbers in a pack than alone, as `Lane.other_draws`."""

    alone: PackCost
    packed: Mapping[int, PackCost]
    batch: Mapping[str, Any]
    is_exact: bool = False
    other_draws: str = ""


def widths_below(width: int) -> list[int]:
    """The powers of two from 2 on."""
    return [2**power for power in range(1, (width - 1).bit_length())]


def timed(compute: Callable[[], object], device: str) -> PackCost:
    """What a computation costs on a device."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    _seconds(compute, device)  # it asks for memory, and a device chooses its kernels in it
    rounds = [_seconds(compute, device)]
    while sum(rounds) < SECONDS:
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
    """Of the lanes over one stack, in which it changes nothing."""

    def __init__(self, stack: Stack, attempts: FallbackStep, stacked: StackedOptimizer) -> None:
        self._stack, self._fallback, self._stacked = stack, attempts, stacked

    def profile(self, lane: Lane) -> Profile:
        """What the next batch of a lane costs its model alone, and full packs of this width and of narrower ones."""
        with generators.kept(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = lane.first_batch()
            alone = self._alone(lane, batch)
            groups = self._fallback.groups([lane] * self._stack.width, batch)
            full = self._full(lane, lambda: [self._put(self._fallback.recorded(lanes, batch)) for lanes in groups])
            room, packed = stable_width(self._stack, lane, batch), {self._stack.width: full}
            for width in self._widths_below(self._stack.width):
                with suppress(torch.OutOfMemoryError, MemoryError):  # there is less than before the pack was there
                    packed[width] = self._cost(lane, batch, room, width)
            is_exact = room.exact and lane.trainer.clip_grad_norm is None and self._steps_as_torchs(lane)
        return Profile(alone, dict(sorted(packed.items())), lane.batch_hp, is_exact, lane.other_draws)

    def measure(self, lane: Lane, widest: int) -> Profile:
        """What the next batch of a lane costs its model alone, and packs of up to so many lanes, fewest first.

        There need be no room for these here. It ends where a lane costs no less than in the pack before, or where
        memory does. Raises `NotPackable`.
        """
        with generators.kept(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = lane.first_batch()
            alone = self._alone(lane, batch)
            room = stable_width(self._stack, lane, batch)
            packed: dict[int, PackCost] = {}
            least = math.inf
            for width in (*self._widths_below(widest), widest):
                try:
                    packed[width] = self._cost(lane, batch, room, width)
                except Exception as error:
                    if packed and is_out_of_memory(error):
                        break
                    raise meaning(error) from error
                if packed[width].seconds / width >= least:
                    break
                least = packed[width].seconds / width
        return Profile(alone, packed, lane.batch_hp, other_draws=lane.other_draws)

    def _widths_below(self, width: int) -> list[int]:
        """One, too, where passes are recorded: that is all that a pack of one has over its model alone."""
        is_recorded = Recordings(self._stack.device).is_on and width > 1
        return [1] * is_recorded + widths_below(width)

    def _steps_as_torchs(self, lane: Lane) -> bool:
        is_stacked = not lane.updates_itself and joins(self._stacked, lane)
        return not is_stacked or self._stacked.is_torchs(lane.trainer.optimizer)

    def _alone(self, lane: Lane, batch: Any) -> PackCost:
        step = rehearsed_alone(lane.trainer.optimizer)
        own = batch_of(batch, lane.number)
        return timed(lambda: (_read(lane), Loss(lane.trainer).alone(own), step()), lane.device)

    def _cost(self, lane: Lane, batch: Any, room: StableWidth, lanes: int) -> PackCost:
        """Of a step of so many lanes, as a narrower pack has."""
        if room.is_apart:
            one = partial(self._fallback.packed, [lane], batch)
            return self._whole(lane, lambda: [self._put(one()) for _ in range(lanes)], lanes)
        rows = lanes + room.rows - room.lanes  # those behind the lanes have gradients, and no optimizer
        numbers, recordings = [lane.number] * rows, Recordings(self._stack.device)
        compute = lambda batch: Loss(lane.trainer).packed(self._stack.rows(numbers), batch)  # noqa: E731
        return self._whole(lane, lambda: self._put(recordings.result("", compute, batch)), lanes)

    def _full(self, lane: Lane, passes: Callable[[], object]) -> PackCost:
        """Of a full pack; where there is no memory for another one, without the optimizers."""
        try:
            return self._whole(lane, passes, self._stack.width)
        except (torch.OutOfMemoryError, MemoryError):
            return timed(passes, lane.device)

    def _whole(self, lane: Lane, passes: Callable[[], object], lanes: int) -> PackCost:
        """Of the batch that is read, passes, and the step of the optimizers after them, on copies."""
        optimizer = lane.trainer.optimizer
        step = self._stacked.rehearsed(lane.model, optimizer, lanes)
        if step is None:
            each = rehearsed_alone(optimizer)
            step = lambda: [each() for _ in range(lanes)]  # noqa: E731
        reads = lanes if lane.has_own_batches else 1
        return timed(lambda: ([_read(lane) for _ in range(reads)], passes(), step()), lane.device)

    def _put(self, result: BackwardResult) -> object:
        """Copies of gradients, as the optimizers read them; the stack is left as it is."""
        return [segment.join(result.gradients) for segment in self._stack.segments]


def _read(lane: Lane) -> object:
    """The next batch, unless other processes read it ahead."""
    return None if lane.is_read_ahead else lane.first_batch()
