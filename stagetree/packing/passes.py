"""One batch, and what all lanes of a stack learn from it in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.lane import Lane
from stagetree.packing.loss import Learnt, Loss, logging
from stagetree.packing.profile import Cost, timed
from stagetree.packing.refusals import NotPackable, meaning
from stagetree.packing.stack import Rows, Stack
from stagetree.packing.steps import Steps
from stagetree.training import generators

Failures = dict[Lane, Exception]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-2}
"""By how much of its length a gradient may differ from that which a model has alone, by what it is computed in."""

MOST_TOLERANCE = 0.1


class Passes:
    """The stack of a pack. like: a lane of the shape that all are to have.

    Every pass has the pack's whole width, whoever is there: with another one a device picks other kernels, and a lane
    would differ in its last bits by how many others there are.
    """

    def __init__(self, like: Lane, width: int) -> None:
        self._width = width
        model, groups = like.model, like.trainer.optimizer.param_groups
        self._stack = Stack(model, [group["params"] for group in groups], width)
        self._steps = Steps(self._stack)
        self._checked: dict[Lane, Any] = {}

    def adopt(self, lane: Lane) -> None:
        """Raises `NotPackable`."""
        if not self._stack.holds(lane.model):
            raise NotPackable("its model has another shape than the others")
        self._stack.adopt(lane.number, lane.model)

    def release(self, lane: Lane) -> None:
        self._checked.pop(lane, None)
        self._steps.leave(lane.number)
        self._stack.release(lane.model)

    # ------------------------------------------------------------------------------------------------ learning

    def learn(self, bucket: Sequence[Lane]) -> None:
        """Have the gradients of lanes that are alike on their next batch, and go by it. Raises what the loss does."""
        lead = bucket[0]
        span = lead.next_batch()
        for number, (batch, share) in enumerate(lead.read(span)):
            rows, learnt = self._learnt(bucket, self._width, batch, share)
            self._stack.put(_numbers(bucket), learnt.gradients, rows.buffers, add=number > 0)
            _tell(bucket, learnt)
        lead.pass_by(span)
        for lane in bucket[1:]:
            lane.follow(lead)

    def _learnt(self, bucket: Sequence[Lane], width: int, batch: Any, share: float = 1.0) -> tuple[Rows, Learnt]:
        """By a pass of a width; the first lane is computed again where there are fewer than that."""
        numbers = _numbers(bucket)
        rows = self._stack.rows(numbers + numbers[:1] * (width - len(numbers)))
        return rows, Loss(bucket[0].trainer).learnt(rows, batch, share)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Change the parameters by the gradients that are there; those whose own code failed meanwhile."""
        joint = [lane for lane in bucket if not lane.updates_itself and self._is_joint(lane)]
        self._stack.clip_gradients(bucket[0].trainer.clip_grad_norm, _numbers(joint))
        errors = self._steps.step(_numbers(joint))
        failures = {lane: errors[lane.number] for lane in joint if lane.number in errors}
        for lane in bucket:
            if lane in failures:
                continue
            try:
                lane.finish(is_stepped=lane in joint)
            except Exception as error:
                failures[lane] = error
        return failures

    def _is_joint(self, lane: Lane) -> bool:
        return self._steps.join(lane.number, lane.model, lane.trainer.optimizer)

    # ------------------------------------------------------------------------------------------------ looking first

    def profile(self, lane: Lane) -> dict[int, Cost]:
        """How long passes of each width take on the next batch of a lane, and its model alone. Nothing is changed."""
        generators.restore(lane.generators, lane.device)
        batch, _ = next(lane.read(lane.next_batch()))
        names, widths = list(self._stack.parameters), [2**power for power in range(1, self._width.bit_length())]
        widths = [width for width in widths if width < self._width] + [self._width]
        measured = {0: timed(lambda: _gradients_alone(lane, names, batch), lane.device)}
        with logging(lane.trainer):
            measured |= {width: timed(partial(self._learnt, [lane], width, batch), lane.device) for width in widths}
        generators.restore(lane.generators, lane.device)
        return measured

    def check(self, bucket: Sequence[Lane]) -> None:
        """Whether lanes that are alike learn together what each would alone, if that was not seen yet.

        Nothing is changed. Raises `NotPackable`.
        """
        if all(self._checked.get(lane) == lane.traits for lane in bucket):
            return
        lead = bucket[0]
        generators.restore(lead.generators, lead.device)
        with lead.watched():
            batch, _ = next(lead.read(lead.next_batch()))
            at = generators.state(lead.device)
            packed = self._packed(bucket, batch)
        for number, lane in enumerate(bucket):
            generators.restore(at, lead.device)
            self._compare(lane, batch, {name: each[number] for name, each in packed.items()})
        self._checked.update({lane: lane.traits for lane in bucket})

    def _packed(self, bucket: Sequence[Lane], batch: Any) -> Mapping[str, Tensor]:
        try:
            with logging(bucket[0].trainer):
                return self._learnt(bucket, self._width, batch)[1].gradients
        except Exception as error:
            raise meaning(error) from error

    def _compare(self, lane: Lane, batch: Any, packed: Mapping[str, Tensor]) -> None:
        """Whether a lane's gradients are what the model has alone, but for rounding."""
        names = [name for name in packed if name in self._stack.parameters]
        alone = _gradients_alone(lane, names, batch)
        missing = [name for name, each in zip(names, alone, strict=True) if each is None]
        if missing:
            raise NotPackable(f"its parameter {missing[0]} has no gradient")
        distance = _length([packed[name] - each for name, each in zip(names, alone, strict=True) if each is not None])
        length = _length([each for each in alone if each is not None])
        tolerance = MOST_TOLERANCE if lane.is_coarse else TOLERANCE.get(self._stack.dtype, MOST_TOLERANCE)
        if distance > tolerance * length + 1e-12:
            raise NotPackable("packed, its loss is another: it depends on something that is not each model's own")


def _gradients_alone(lane: Lane, names: Sequence[str], batch: Any) -> Sequence[Tensor | None]:
    """On a batch, with the global generators as they stand. The buffers are as they were, and nothing is logged."""
    named, buffers = dict(lane.model.named_parameters()), dict(lane.model.named_buffers())
    kept = _copied(buffers)
    with logging(lane.trainer):
        loss = Loss(lane.trainer)(batch)
        gradients = torch.autograd.grad(loss, [named[name] for name in names], allow_unused=True)
    for name, buffer in buffers.items():
        buffer.copy_(kept[name])
    return gradients


def _tell(bucket: Sequence[Lane], learnt: Learnt) -> None:
    """What was logged, to each whose it is."""
    for name, sums in learnt.sums.items():
        for lane, total in zip(bucket, sums, strict=False):
            lane.log(name, total, learnt.counts[name])


def _numbers(lanes: Sequence[Lane]) -> list[int]:
    return [lane.number for lane in lanes]


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in tensors.items()}


def _length(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in tensors]).norm())
