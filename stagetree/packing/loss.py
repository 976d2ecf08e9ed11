"""The gradients of many models on one batch, by one call of the user's own `loss`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from stagetree.logged import Logged
from stagetree.packing.stack import Rows
from stagetree.torch_trainer import TorchTrainer

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Learnt:
    """The gradients by parameter, what the buffers have become, and the sums of what was logged with how often it was.

    Of models that were packed, each tensor has a row for every one.
    """

    gradients: Tensors
    buffers: Tensors
    sums: Tensors
    counts: Mapping[str, int]


class Loss(nn.Module):
    """The loss of one trainer, as a module of which the model is a part, so that the model's tensors can be others."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__()
        self.model, self._trainer = trainer.model, trainer
        self._counts: dict[str, int] = {}

    def forward(self, batch: Any) -> Tensor:
        with self._trainer.autocast():
            return self._trainer.loss(batch)

    def learnt(self, rows: Rows, batch: Any, share: float = 1.0) -> Learnt:
        """What these lanes learn from one batch, times `share`. Raises whatever the loss does.

        Every lane draws the same random numbers from the global generators, as each would if it were alone with the
        generators as they stand.
        """

        def loss(parameters: Tensors, constants: Tensors, buffers: Tensors) -> tuple[Tensor, Tensors]:
            tensors = (*parameters.items(), *constants.items(), *buffers.items())
            with logging(self._trainer) as logged:
                value = functional_call(self, {f"model.{name}": each for name, each in tensors}, (batch,))
            self._counts = {name: count for name, (_, count) in logged.totals().items()}
            sums = {name: torch.as_tensor(total) for name, (total, _) in logged.totals().items()}
            return value if share == 1.0 else value * share, sums

        packed = vmap(grad_and_value(loss, has_aux=True), randomness="same")
        gradients, (_, sums) = packed(rows.parameters, rows.constants, rows.buffers)
        return Learnt(gradients, rows.buffers, sums, self._counts)

    def alone(self, batch: Any) -> Learnt:
        """What the model by itself learns from one batch; a parameter without a gradient is left out.

        Its buffers are as they were afterwards, and nothing is logged.
        """
        named = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        buffers = dict(self.model.named_buffers())
        before = {name: each.clone() for name, each in buffers.items()}
        with logging(self._trainer):
            found = torch.autograd.grad(self(batch), list(named.values()), allow_unused=True)
        after = {name: each.clone() for name, each in buffers.items()}
        for name, each in buffers.items():
            each.copy_(before[name])
        gradients = {name: each for name, each in zip(named, found, strict=True) if each is not None}
        return Learnt(gradients, after, {}, {})


@contextmanager
def logging(trainer: TorchTrainer) -> Iterator[Logged]:
    """What the trainer logs goes there for a while."""
    logged, before = Logged(), vars(trainer).get("_logged")
    vars(trainer)["_logged"] = logged
    try:
        yield logged
    finally:
        del vars(trainer)["_logged"]
        if before is not None:
            vars(trainer)["_logged"] = before
