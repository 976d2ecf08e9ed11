"""One batch, and what all lanes of a stack learn from it in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.lane import Lane
from stagetree.packing.loss import Learnt, Loss, logging
from stagetree.packing.refusals import NotPackable, meaning
from stagetree.packing.stack import Stack
from stagetree.packing.steps import Steps
from stagetree.training import generators

Failures = dict[Lane, Exception]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-2}
"""By how much of its length a gradient may differ from that which a model has alone, by what it is computed in."""

MOST_TOLERANCE = 0.1


class Passes:
    """The stack of a pack. like: a lane of the shape that all are to have."""

    def __init__(self, like: Lane, width: int) -> None:
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

    def learn(self, bucket: Sequence[Lane], has_others: bool) -> None:
        """Have the gradients of lanes that are alike on their next batch, and go by it.

        has_others: whether there are lanes besides, which must not change. Raises whatever the loss does.
        """
        lead, rows = bucket[0], self._rows(bucket) if has_others else None
        span = lead.next_batch()
        for number, (batch, share) in enumerate(lead.read(span)):
            buffers = self._stack.buffers if rows is None else _copied(self._stack.buffers)
            learnt = Loss(lead.trainer).learnt(self._stack, buffers, batch, share)
            self._stack.put_gradients(learnt.gradients, rows, add=number > 0)
            if rows is not None:
                self._stack.put_buffers(buffers, rows)
            _tell(bucket, learnt)
        lead.pass_by(span)
        for lane in bucket[1:]:
            lane.follow(lead)

    def update(self, bucket: Sequence[Lane]) -> Failures:
        """Change the parameters by the gradients that are there; those whose own code failed meanwhile."""
        joint = [lane for lane in bucket if not lane.updates_itself and self._is_joint(lane)]
        self._stack.clip_gradients(bucket[0].trainer.clip_grad_norm, [lane.number for lane in joint])
        errors = self._steps.step([lane.number for lane in joint])
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

    def _rows(self, lanes: Sequence[Lane]) -> Tensor:
        return torch.tensor([lane.number for lane in lanes], device=self._stack.device)

    # ------------------------------------------------------------------------------------------------ looking first

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
            with logging(lead.trainer):
                packed = self._packed(lead, batch)
        for lane in bucket:
            generators.restore(at, lead.device)
            self._compare(lane, batch, {name: each[lane.number] for name, each in packed.gradients.items()})
        self._checked.update({lane: lane.traits for lane in bucket})

    def _packed(self, lead: Lane, batch: Any) -> Learnt:
        try:
            return Loss(lead.trainer).learnt(self._stack, _copied(self._stack.buffers), batch)
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
        for lane in bucket:
            lane.log(name, sums[lane.number], learnt.counts[name])


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in tensors.items()}


def _length(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in tensors]).norm())
