"""The gradients of many models on one batch, by one call of the user's own `loss`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from stagetree.packing.refusals import NotPackable
from stagetree.packing.stack import StackRows
from stagetree.trainer.base import MetricSums
from stagetree.trainer.tensors import Mean, one_mean
from stagetree.trainer.torch_trainer import TorchTrainer

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BackwardResult:
    """Gradients by parameter, the buffers afterwards, and the sums and counts of logged values, by name.

    Of packed models each tensor has a row per model.
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

    def forward(self, batch: Any) -> Mean:
        with self._trainer.autocast():
            return self._trainer.loss(batch)

    def packed(self, rows: StackRows, batch: Any, share: float = 1.0) -> BackwardResult:
        """The gradients of the lanes in `rows` on one batch, times `share`. Raises whatever the loss raises.

        Every lane draws the same random numbers from the global generators, as each would alone with the generators
        as they are.
        """
        parameters = {name: each.requires_grad_() for name, each in rows.parameters.items()}
        tensors = {**parameters, **rows.constants, **rows.buffers}

        def loss(*each_lanes: Tensor) -> tuple[Tensor, Tensors]:
            named = {f"model.{name}": each for name, each in zip(tensors, each_lanes, strict=True)}
            with logging(self._trainer) as logged:
                value = _shared(functional_call(self, named, (batch,)), share)
            sums, self._counts = _totals(logged)
            return value, sums

        losses, sums = vmap(loss, randomness="same")(*tensors.values())
        ones = torch.ones_like(losses)  # no lane's loss depends on another's parameters
        found = torch.autograd.grad(losses, list(parameters.values()), ones, materialize_grads=True)
        buffers = {name: each.detach() for name, each in rows.buffers.items()}
        return BackwardResult(dict(zip(parameters, found, strict=True)), buffers, sums, self._counts)

    def alone(self, batch: Any, share: float = 1.0) -> BackwardResult:
        """The gradients of the model alone on one batch, times `share`; parameters without a gradient are left out.

        Nothing is changed: its buffers are restored, and nothing is logged. Raises whatever the loss raises.
        """
        named = self._learning()
        with self._keeping_buffers(), logging(self._trainer) as logged:
            value = _shared(self.forward(batch), share)  # without torch's lines in a traceback
            found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
            after = {name: each.clone() for name, each in self.model.named_buffers()}
        gradients = {name: each for name, each in zip(named, found, strict=True) if each is not None}
        sums, counts = _totals(logged)
        return BackwardResult(gradients, after, sums, counts)

    def outputs(self, batch: Any, rows: StackRows | None = None) -> dict[str, Tensor]:
        """What each module of the model gives, by its name, in the order in which they are done: only real numbers.

        rows: of the lanes of a pass, of which the first one's are told; None for the model alone. Raises whatever the
        loss does.
        """
        if rows is None:
            with torch.no_grad(), self._keeping_buffers(), logging(self._trainer), _noted(self.model) as outputs:
                self.forward(batch)
            return outputs
        names: dict[str, None] = {}
        tensors = {**rows.parameters, **rows.constants, **rows.buffers}

        def seen(*each_lanes: Tensor) -> tuple[Tensor, ...]:
            named = {f"model.{name}": each for name, each in zip(tensors, each_lanes, strict=True)}
            with logging(self._trainer), _noted(self.model) as outputs:
                functional_call(self, named, (batch,))
            names.update(dict.fromkeys(outputs))
            return tuple(outputs.values())

        with torch.no_grad():
            found = vmap(seen, randomness="same")(*tensors.values())
        return {name: each[0] for name, each in zip(names, found, strict=True)}

    def by_itself(self, batch: Any, share: float) -> BackwardResult:
        """As `packed`, for the one lane whose model this is, computed as without a pack."""
        one = self.alone(batch, share)
        still = {name: torch.zeros_like(each) for name, each in self._learning().items()}
        return BackwardResult(_as_row(still | dict(one.gradients)), _as_row(one.buffers), _as_row(one.sums), one.counts)

    @contextmanager
    def _keeping_buffers(self) -> Iterator[None]:
        """Those of the model are afterwards as they are now."""
        buffers = list(self.model.buffers())
        before = [each.clone() for each in buffers]
        try:
            yield
        finally:
            for each, was in zip(buffers, before, strict=True):
                each.copy_(was)

    def _learning(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}


def _shared(value: Mean, share: float) -> Tensor:
    """The loss times a part's share of the samples. Raises `NotPackable` for a part whose share is another."""
    if share == 1.0:
        return one_mean("the loss", value)
    if isinstance(value, tuple | list):
        raise NotPackable("its loss is (sum, count), and `micro_batch_size` cuts its batches: leave one of them out")
    return one_mean("the loss", value) * share


def _as_row(tensors: Tensors) -> Tensors:
    return {name: each.unsqueeze(0) for name, each in tensors.items()}


def _totals(logged: MetricSums) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The sums of what was logged, and how often it was."""
    totals = logged.totals()
    sums = {name: torch.as_tensor(total) for name, (total, _) in totals.items()}
    return sums, {name: count for name, (_, count) in totals.items()}


@contextmanager
def _noted(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Copies of what its modules give for a while, of the last time that each is called; the model itself is ''."""
    outputs: dict[str, Tensor] = {}

    def note(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs[name] = output.clone()  # what comes next may write into it

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def logging(trainer: TorchTrainer) -> Iterator[MetricSums]:
    """What the trainer logs goes there for a while."""
    logged, before = MetricSums(), vars(trainer).get("_logged")
    vars(trainer)["_logged"] = logged
    try:
        yield logged
    finally:
        del vars(trainer)["_logged"]
        if before is not None:
            vars(trainer)["_logged"] = before
