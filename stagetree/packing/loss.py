"""The gradients of many models on one batch, by one call of the user's own `loss`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from stagetree.packing.batched import Batched, attention_apart
from stagetree.packing.refusals import NotPackable
from stagetree.packing.rows import OwnBatches, batch_of
from stagetree.packing.stack import StackRows
from stagetree.trainer.base import MetricSums
from stagetree.trainer.tensors import Mean, one_mean
from stagetree.trainer.torch_trainer import TorchTrainer

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BackwardResult:
    """Gradients by parameter, the buffers afterwards, and the sums and counts of logged values, by name.

    Of packed models each tensor has a row per model. numbers: of their lanes, row by row; of a model by itself there
    are none. flat_buffers: as of `StackRows`.
    """

    gradients: Tensors
    buffers: Tensors
    sums: Tensors
    counts: Mapping[str, int]
    numbers: Sequence[int] = ()
    flat_buffers: Sequence[Tensor] = ()

    def rows(self, lanes: Sequence[int]) -> Sequence[int]:
        """Of these lanes, which are the only ones where there are no numbers."""
        return [self.numbers.index(lane) for lane in lanes] if self.numbers else range(len(lanes))


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

        batch: or `OwnBatches` of one form. Every lane draws the same random numbers from the global generators, as
        each would alone with the generators as they are.
        """
        gradients, sums = self._by_row(rows, batch, share)
        return BackwardResult(gradients, rows.buffers, sums, self._counts, rows.numbers, rows.flat_buffers)

    def _by_row(self, rows: StackRows, batch: Any, share: float) -> tuple[Tensors, Tensors]:
        """The gradients, and the sums of logged values. Buffers are changed in place."""

        def loss(named: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensors]:
            with logging(self._trainer) as logged, self._in_lanes(rows):
                value = _shared(functional_call(self, named, (batch,)), share)
            sums, self._counts = _totals(logged)
            return value, sums

        losses, sums = self._of_each(loss, rows, batch)
        ones = torch.ones_like(losses)  # no lane's loss depends on another's parameters
        gradients = torch.autograd.grad(losses, list(rows.parameters.values()), ones, materialize_grads=True)
        return dict(zip(rows.parameters, gradients, strict=True)), sums

    def _of_each(self, compute: Callable[[dict[str, Tensor], Any], Any], rows: StackRows, batch: Any) -> Any:
        """What is computed of the tensors of each lane, by their names in this module, and of its batch: with rows."""
        leaves, nest = tree_flatten(batch_of(batch, rows.numbers[0]))
        at = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        own = list[Tensor]()
        if isinstance(batch, OwnBatches):
            each = {number: tree_flatten(batch[number])[0] for number in rows.numbers}
            own = [torch.stack([each[number][leaf] for number in rows.numbers]) for leaf in at]

        def of_one(*tensors: Tensor) -> Any:
            replaced = leaves.copy()
            for leaf, tensor in zip(at if own else (), tensors[len(tensors) - len(own) :], strict=True):
                replaced[leaf] = tensor
            named = _named(rows, tensors[: len(tensors) - len(own)])
            return compute(named, tree_unflatten(replaced, nest))

        with attention_apart():
            return vmap(of_one, randomness="same")(*rows.parameters.values(), *rows.buffers.values(), *own)

    @contextmanager
    def _in_lanes(self, rows: StackRows) -> Iterator[None]:
        """Within a function that `vmap` calls."""
        whole = [self.model.get_submodule(name) for name in rows.opaque]
        with Batched(len(rows.numbers)) as batched, batched.in_one(whole):
            yield

    def alone(self, batch: Any, share: float = 1.0, has_zeros: bool = False) -> BackwardResult:
        """The gradients of the model alone on one batch, times `share`.

        has_zeros: whether parameters without a gradient have zeros; else they are left out. Nothing is changed: its
        buffers are restored, and nothing is logged. Raises whatever the loss raises.
        """
        named = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        with self._keeping_buffers() as buffers, logging(self._trainer) as logged:
            value = _shared(self.forward(batch), share)  # without torch's lines in a traceback
            computed = torch.autograd.grad(value, list(named.values()), allow_unused=True)
            after = {name: each.clone() for name, each in buffers.items()}
        gradients = {
            name: torch.zeros_like(each) if gradient is None else gradient
            for (name, each), gradient in zip(named.items(), computed, strict=True)
            if has_zeros or gradient is not None
        }
        sums, counts = _totals(logged)
        return BackwardResult(gradients, after, sums, counts)

    def kept_bytes(self, batch: Any) -> int:
        """Of what the model alone keeps of a batch for its backward pass. Raises whatever the loss raises."""
        sizes: dict[int, int] = {}

        def note(kept: Tensor) -> Tensor:
            at = kept.untyped_storage().data_ptr()
            sizes[at] = max(sizes.get(at, 0), kept.numel() * kept.element_size())
            return kept

        with saved_tensors_hooks(note, lambda kept: kept):
            self.alone(batch)
        for each in (*self.model.parameters(), *self.model.buffers()):
            sizes.pop(each.untyped_storage().data_ptr(), None)
        return sum(sizes.values())

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

        def seen(named: dict[str, Tensor], batch: Any) -> tuple[Tensor, ...]:
            with logging(self._trainer), _noted(self.model) as outputs, self._in_lanes(rows):
                functional_call(self, named, (batch,))
            names.update(dict.fromkeys(outputs))
            return tuple(outputs.values())

        with torch.no_grad():
            values = self._of_each(seen, rows, batch)
        return {name: each[0] for name, each in zip(names, values, strict=True)}

    def by_itself(self, batch: Any, share: float) -> BackwardResult:
        """As `packed`, for the one lane whose model this is, computed as without a pack."""
        one = self.alone(batch, share, has_zeros=True)
        return BackwardResult(_as_row(one.gradients), _as_row(one.buffers), _as_row(one.sums), one.counts)

    @contextmanager
    def _keeping_buffers(self) -> Iterator[dict[str, Tensor]]:
        """The buffers of the model, by name, are afterwards as they are now."""
        buffers = dict(self.model.named_buffers())
        before = [each.clone() for each in buffers.values()]
        try:
            yield buffers
        finally:
            for each, was in zip(buffers.values(), before, strict=True):
                each.copy_(was)


def _shared(value: Mean, share: float) -> Tensor:
    """The loss times a part's share of the samples. Raises `NotPackable` for a part whose share is another."""
    if share == 1.0:
        return one_mean("the loss", value)
    if isinstance(value, tuple | list):
        raise NotPackable("its loss is (sum, count), and `micro_batch_size` cuts its batches: leave one of them out")
    return one_mean("the loss", value) * share


def _named(rows: StackRows, each_lanes: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors of one lane, by their names in the module. Constants have no rows: all lanes have the same."""
    own = zip((*rows.parameters, *rows.buffers), each_lanes, strict=True)
    return {f"model.{name}": each for name, each in (*own, *rows.constants.items())}


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
