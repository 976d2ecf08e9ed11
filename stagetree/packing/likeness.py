"""Whether a model learns in a pack what it learns alone, up to rounding: checked before its first step.

Compared is the gradient of one batch on drawn weights. Random numbers inside of the model, such as dropout's, are fixed
meanwhile, so they decide nothing; where a pack draws others, that is noted: see `stagetree.packing.draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from stagetree.packing.draws import Draw, Draws, first_unlike
from stagetree.packing.fallback import FallbackStep
from stagetree.packing.lane import Generators, Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.refusals import NotPackable, meaning
from stagetree.packing.rows import batch_of
from stagetree.packing.stack import Stack
from stagetree.trainer import generators

TOLERANCE = {torch.float64: 1e-9}
"""By how much of its length a gradient may differ from that which a model has alone, by what it is computed in."""

MOST_TOLERANCE = 1e-2

MORE_ROUNDING = 2.0
"""In bf16 or TF32 a gradient may be so many times as far from that in single precision as the model's own is alone, if
that is more: a deep network has rounding of several hundredths."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Sample:
    """What is learned from one batch. own: in the trainer's precision. single: in that of the parameters; the same
    where that is no other. drawn: the random numbers that it took."""

    own: BackwardResult
    single: BackwardResult
    drawn: Sequence[Draw]


class Likeness:
    """Of the lanes over one stack, in which it changes nothing."""

    def __init__(self, stack: Stack, attempts: FallbackStep) -> None:
        self._stack, self._fallback = stack, attempts

    def unlike(self, bucket: Sequence[Lane]) -> list[Lane]:
        """Of lanes that are alike, those that have other gradients alone than the first one has in a pass.

        All with the same weights. The others know by `other_draws` which module draws otherwise. Raises `NotPackable`,
        about the first one.
        """
        lead = bucket[0]
        batch, share, at = self._batch(lead)
        plain, draws = (
            batch_of(batch, lead.number),
            lead.has_own_batches and not generators.are_equal(at, lead.generators),
        )
        self._fallback.groups([lead], batch)  # has the rows of a pass looked for, with random numbers as they come
        with lead.watched():
            packed = self._sample(lead, at, lambda: self._fallback.packed([lead], batch, share))
        unlike: list[Lane] = []
        for lane in bucket:
            try:
                alone = self._sample(lane, at, lambda lane=lane: Loss(lane.trainer).alone(plain, share))  # type: ignore[misc]
                is_near = self._is_near(lead, packed, alone) and (lane is lead or not draws)
            except NotPackable:
                if lane is lead:
                    raise
                is_near = False
            if is_near:
                lane.other_draws = first_unlike(alone.drawn, packed.drawn)
            else:
                unlike.append(lane)
        return unlike

    def difference(self, lane: Lane) -> NotPackable:
        """In which a lane is another that is `unlike` what it is by itself in a pass."""
        batch, _, at = self._batch(lane)
        numbers = [lane.number] * self._stack.width
        packed = self._in_single(lane, at, lambda: Loss(lane.trainer).outputs(batch, self._stack.rows(numbers)))
        alone = self._in_single(lane, at, lambda: Loss(lane.trainer).outputs(batch_of(batch, lane.number)))
        name = next((name for name in alone if name not in packed or self._is_far(packed[name], alone[name])), None)
        if name is None:
            return NotPackable(
                "packed, its loss is another, though all modules give the same: it depends on something that is no "
                "tensor, or reaches parameters by another way than the model"
            )
        kind = type(lane.model.get_submodule(name)).__name__
        module = f"`{name}` ({kind})" if name else f"the whole model ({kind})"
        return NotPackable(f"packed, its loss is another: the first module with another output is {module}")

    def _batch(self, lane: Lane) -> tuple[Any, float, Generators]:
        """The samples of the next pass of a lane, their share of the batch, and where the generators are then."""
        generators.restore(lane.generators, lane.device)
        try:
            with lane.watched():
                batch, share = lane.first_batch()
        except NotPackable:
            raise
        except Exception as error:
            raise meaning(error) from error
        return batch, share, generators.state(lane.device)

    def _sample(self, lane: Lane, at: Generators, learn: Callable[[], BackwardResult]) -> Sample:
        draws = Draws(lane.model)
        with draws.naming():
            own = self._found(lane, at, learn)
        if not (lane.is_rounded or self._stack.coarse):
            return Sample(own, own, draws.drawn)
        return Sample(own, self._in_single(lane, at, learn), draws.drawn)

    def _in_single(self, lane: Lane, at: Generators, find: Callable[[], Found]) -> Found:
        """The same without rounding: in the precision of the parameters that learn.

        The others stay in bf16 where the loss wants it, as one that casts its batch to bf16 does.
        """
        with lane.in_single(), Draws(lane.model).naming():
            try:
                return self._found(lane, at, find, self._stack.widened(lane.model))
            except NotPackable:
                if not self._stack.coarse:
                    raise
                return self._found(lane, at, find)

    def _found(
        self,
        lane: Lane,
        at: Generators,
        find: Callable[[], Found],
        drawn_in: AbstractContextManager[None] | None = None,
    ) -> Found:
        """The result with drawn weights, and the generators there. Raises `NotPackable`.

        drawn_in: entered when the weights are drawn.
        """
        generators.restore(at, lane.device)
        try:
            with self._stack.drawn(lane.number, seed=0), drawn_in or nullcontext():
                before = self._versions()
                result = find()
                written = next((name for name, version in self._versions().items() if version != before[name]), None)
        except Exception as error:
            raise meaning(error) from error
        if written is not None:
            raise NotPackable(f"its loss writes into {written}, which does not learn and all trials share: see buffers")
        return result

    def _versions(self) -> dict[str, int]:
        """Of what all models have in common: it counts what is written."""
        return {name: each._version for name, each in self._stack.constants.items()}

    def _is_near(self, lead: Lane, packed: Sample, alone: Sample) -> bool:
        """Whether gradients are the same but for rounding. Raises `NotPackable` if some are not there."""
        missing = packed.own.gradients.keys() - alone.own.gradients.keys()
        if missing:
            raise NotPackable(f"its parameter {min(missing)} has no gradient")
        exact = alone.single.gradients
        bound = self._tolerance * _length(exact.values()) + 1e-12
        rounding = 0.0 if alone.own is alone.single else _distance(alone.own.gradients, exact)
        own, single = _row_of(lead, packed.own), _row_of(lead, packed.single)
        return not (_distance(single, exact) > bound or _distance(own, exact) > max(bound, MORE_ROUNDING * rounding))

    def _is_far(self, packed: Tensor, alone: Tensor) -> bool:
        return packed.shape != alone.shape or _length([packed - alone]) > self._tolerance * _length([alone])

    @property
    def _tolerance(self) -> float:
        return TOLERANCE.get(self._stack.dtype, MOST_TOLERANCE)


def _row_of(lane: Lane, result: BackwardResult) -> dict[str, Tensor]:
    """A lane's own gradients."""
    row = result.rows([lane.number])[0]
    return {name: each[row] for name, each in result.gradients.items()}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return _length([each - other[name] for name, each in one.items()])


def _length(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in tensors]).norm())
