"""A step of all lanes of a stack: one backward pass over their batch, and one step of their optimizers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from stagetree.packing.fallback import FallbackStep
from stagetree.packing.fused_optimizer import FusedOptimizer, rehearsed_alone
from stagetree.packing.lane import Lane
from stagetree.packing.likeness import Likeness
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.own_batches import OwnBatches, batch_of
from stagetree.packing.refusals import NotPackable, is_out_of_memory, meaning
from stagetree.packing.rows import log
from stagetree.packing.stable_width import stable_width
from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer
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
        self._stacked, self._fused = StackedOptimizer(self._stack), FusedOptimizer(self._stack)
        self._fallback = FallbackStep(self._stack)
        self._likeness = Likeness(self._stack, self._fallback)
        self._checked: dict[Lane, Any] = {}

    def hold(self, lane: Lane) -> bool:
        """Whether a lane has the shape of those here."""
        return self._stack.holds(lane.model)

    def adopt(self, lane: Lane) -> None:
        self._stack.adopt(lane.number, lane.model)

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._stacked.leave(lane.number)
        self._fused.leave(lane.number)
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
                    continue
                self._take(lanes, outcome, add=number > 0)
        lead.pass_by(span)
        for lane in bucket[1:]:
            lane.follow(lead)
        return failures

    def _take(self, lanes: Sequence[Lane], found: BackwardResult, add: bool) -> None:
        numbers = _numbers(lanes)
        rows = found.rows(numbers)
        self._stack.put(numbers, rows, found.gradients, add)
        self._stack.put_buffers(numbers, rows, found.buffers, found.flat_buffers)
        if not found.sums:
            return
        sums = {name: each[: self._stack.width] for name, each in found.sums.items()}
        log({lane.logged: row for lane, row in zip(lanes, rows, strict=True)}, sums, found.counts)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Change the parameters by their gradients; the lanes whose own code failed meanwhile."""
        ours = [lane for lane in bucket if not lane.updates_itself]
        stacked = {lane: None for lane in ours if _joins(self._stacked, lane)}
        fused = [lane for lane in ours if lane not in stacked and _joins(self._fused, lane)]
        joint = {*stacked, *fused}
        if joint:
            longest = bucket[0].trainer.clip_grad_norm
            self._stack.clip_gradients(longest, [lane.number for lane in bucket if lane in joint])
        self._stacked.step(_numbers(stacked))
        errors = self._fused.step(_numbers(fused))
        failures = {lane: errors[lane.number] for lane in fused if lane.number in errors}
        for lane in bucket:
            if lane in failures:
                continue
            try:
                lane.finish(is_stepped=lane in joint)
            except Exception as error:
                failures[lane] = error
        return failures

    # ------------------------------------------------------------------------------------------------ looking first

    def profile(self, lane: Lane) -> Profile:
        """What the next batch of a lane costs its model alone, and full packs of this width and of narrower ones."""
        with generators.kept(lane.device):
            generators.restore(lane.generators, lane.device)
            batch, _ = lane.first_batch()
            alone = self._alone(lane, batch)
            groups = self._fallback.groups([lane] * self._stack.width, batch)
            full = self._full(lane, lambda: [self._fallback.packed(lanes, batch) for lanes in groups])
            room, packed = stable_width(self._stack, lane, batch), {self._stack.width: full}
            for width in widths_below(self._stack.width):
                with suppress(torch.OutOfMemoryError, MemoryError):  # there is less than before the pack was there
                    packed[width] = self._cost(lane, batch, width + room.rows - room.lanes)
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
            for width in (*widths_below(widest), widest):
                try:
                    packed[width] = self._cost(lane, batch, width + room.rows - room.lanes)
                except Exception as error:
                    if packed and is_out_of_memory(error):
                        break
                    raise meaning(error) from error
                if packed[width].seconds / width >= least:
                    break
                least = packed[width].seconds / width
        return Profile(alone, packed, lane.batch_hp, other_draws=lane.other_draws)

    def _steps_as_torchs(self, lane: Lane) -> bool:
        is_stacked = not lane.updates_itself and _joins(self._stacked, lane)
        return not is_stacked or self._stacked.is_torchs(lane.trainer.optimizer)

    def _alone(self, lane: Lane, batch: Any) -> PackCost:
        step = rehearsed_alone(lane.trainer.optimizer)
        own = batch_of(batch, lane.number)
        return timed(lambda: (Loss(lane.trainer).alone(own), step()), lane.device)

    def _cost(self, lane: Lane, batch: Any, rows: int) -> PackCost:
        """Of a step with so many rows, as a narrower pack has."""
        numbers = [lane.number] * rows
        return self._whole(lane, lambda: Loss(lane.trainer).packed(self._stack.rows(numbers), batch), rows)

    def _full(self, lane: Lane, passes: Callable[[], object]) -> PackCost:
        """Of a full pack; where there is no memory for another one, without the optimizers."""
        try:
            return self._whole(lane, passes, self._stack.width)
        except (torch.OutOfMemoryError, MemoryError):
            return timed(passes, lane.device)

    def _whole(self, lane: Lane, passes: Callable[[], object], lanes: int) -> PackCost:
        """Of passes and the step of the optimizers after them, on copies."""
        optimizer = lane.trainer.optimizer
        step = self._stacked.rehearsed(lane.model, optimizer, lanes)
        if step is None:
            each = rehearsed_alone(optimizer)
            step = lambda: [each() for _ in range(lanes)]  # noqa: E731
        return timed(lambda: (passes(), step()), lane.device)

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


def _joins(optimizer: StackedOptimizer | FusedOptimizer, lane: Lane) -> bool:
    return optimizer.join(lane.number, lane.model, lane.trainer.optimizer)


def _numbers(lanes: Iterable[Lane]) -> list[int]:
    return [lane.number for lane in lanes]
