"""Gradients of many models on one batch, by one call of the user's `loss`."""

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

from stagetree.packing.batched import Batched, decompose_attention
from stagetree.packing.packability import NotPackable
from stagetree.packing.rows import LaneBatches, lane_batch
from stagetree.packing.stack import StackRows
from stagetree.trainer.base import MetricSums
from stagetree.trainer.tensors import Mean, one_mean
from stagetree.trainer.torch_trainer import TorchTrainer

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BackwardResult:
    """Gradients by parameter, the buffers afterwards, and the sums and counts of logged values by name.

    Packed results have a row a lane. numbers: the lanes of the rows; empty for a single model. flat_buffers: see
    `StackRows`.
    """

    gradients: Tensors
    buffers: Tensors
    sums: Tensors
    counts: Mapping[str, int]
    numbers: Sequence[int] = ()
    flat_buffers: Sequence[Tensor] = ()

    def rows(self, lanes: Sequence[int]) -> Sequence[int]:
        """The rows of these lanes. Without numbers, the lanes are all rows in order."""
        return [self.numbers.index(lane) for lane in lanes] if self.numbers else range(len(lanes))


class Loss(nn.Module):
    """A trainer's loss as a module that contains the model, so that `functional_call` can replace its tensors."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__()
        self.model, self._trainer = trainer.model, trainer
        self._counts: dict[str, int] = {}

    def forward(self, batch: Any) -> Mean:
        with self._trainer.autocast():
            return self._trainer.loss(batch)

    def run_packed(self, rows: StackRows, batch: Any, share: float = 1.0) -> BackwardResult:
        """The gradients of the lanes in `rows` on one batch, times `share`. Raises the errors of the loss.

        batch: shared, or `LaneBatches` of one structure. All lanes draw the same random numbers as each would
        draw alone with the current generators.
        """

        def loss(named: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensors]:
            with capture_logs(self._trainer) as logged, self._lane_context(rows):
                value = _weighted_loss(functional_call(self, named, (batch,)), share)
            sums, self._counts = _totals(logged)
            return value, sums

        losses, sums = self._map_lanes(loss, rows, batch)
        ones = torch.ones_like(losses)  # no lane's loss depends on another's parameters
        found = torch.autograd.grad(losses, list(rows.parameters.values()), ones, materialize_grads=True)
        gradients = dict(zip(rows.parameters, found, strict=True))
        return BackwardResult(gradients, rows.buffers, sums, self._counts, rows.numbers, rows.flat_buffers)

    def _map_lanes(self, compute: Callable[[dict[str, Tensor], Any], Any], rows: StackRows, batch: Any) -> Any:
        """Map `compute` over the lanes, with each lane's tensors by their names in this module, and its batch."""
        leaves, nest = tree_flatten(lane_batch(batch, rows.numbers[0]))
        at = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        own = list[Tensor]()
        if isinstance(batch, LaneBatches):
            each = {number: tree_flatten(batch[number])[0] for number in rows.numbers}
            own = [torch.stack([each[number][leaf] for number in rows.numbers]) for leaf in at]

        def compute_lane(*tensors: Tensor) -> Any:
            replaced = leaves.copy()
            for leaf, tensor in zip(at if own else (), tensors[len(tensors) - len(own) :], strict=True):
                replaced[leaf] = tensor
            stacked = zip((*rows.parameters, *rows.buffers), tensors[: len(tensors) - len(own)], strict=True)
            named = {f"model.{name}": each for name, each in (*stacked, *rows.constants.items())}  # shared by all lanes
            return compute(named, tree_unflatten(replaced, nest))

        with decompose_attention():
            return vmap(compute_lane, randomness="same")(*rows.parameters.values(), *rows.buffers.values(), *own)

    @contextmanager
    def _lane_context(self, rows: StackRows) -> Iterator[None]:
        """The context inside a function under `vmap`."""
        whole = [self.model.get_submodule(name) for name in rows.opaque]
        with Batched(len(rows.numbers)) as batched, batched.lanes_as_samples(whole):
            yield

    def run_alone(self, batch: Any, share: float = 1.0, has_zeros: bool = False) -> BackwardResult:
        """The gradients of the model alone on one batch, times `share`.

        has_zeros: parameters without a gradient get zeros; otherwise they are left out. Buffers are restored and
        nothing is logged. Raises the errors of the loss.
        """
        named = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        with self._restoring_buffers() as buffers, capture_logs(self._trainer) as logged:
            value = _weighted_loss(self.forward(batch), share)  # no torch frames in the user's traceback
            computed = torch.autograd.grad(value, list(named.values()), allow_unused=True)
            after = {name: each.clone() for name, each in buffers.items()}
        gradients = {
            name: torch.zeros_like(each) if gradient is None else gradient
            for (name, each), gradient in zip(named.items(), computed, strict=True)
            if has_zeros or gradient is not None
        }
        sums, counts = _totals(logged)
        return BackwardResult(gradients, after, sums, counts)

    def saved_bytes(self, batch: Any) -> int:
        """Bytes that autograd saves for the model's backward pass on a batch. Raises the errors of the loss."""
        sizes: dict[int, int] = {}

        def note(kept: Tensor) -> Tensor:
            at = kept.untyped_storage().data_ptr()
            sizes[at] = max(sizes.get(at, 0), kept.numel() * kept.element_size())
            return kept

        with saved_tensors_hooks(note, lambda kept: kept):
            self.run_alone(batch)
        for each in (*self.model.parameters(), *self.model.buffers()):
            sizes.pop(each.untyped_storage().data_ptr(), None)
        return sum(sizes.values())

    def outputs(self, batch: Any, rows: StackRows | None = None) -> dict[str, Tensor]:
        """The floating-point output of each module by name, in the order of the calls.

        rows: the lanes of a pass, whose first lane is returned; None for the model alone. Raises the errors of the
        loss.
        """
        if rows is None:
            with (
                torch.no_grad(),
                self._restoring_buffers(),
                capture_logs(self._trainer),
                _record_outputs(self.model) as outputs,
            ):
                self.forward(batch)
            return outputs
        names: dict[str, None] = {}

        def compute(named: dict[str, Tensor], batch: Any) -> tuple[Tensor, ...]:
            with capture_logs(self._trainer), _record_outputs(self.model) as outputs, self._lane_context(rows):
                functional_call(self, named, (batch,))
            names.update(dict.fromkeys(outputs))
            return tuple(outputs.values())

        with torch.no_grad():
            values = self._map_lanes(compute, rows, batch)
        return {name: each[0] for name, each in zip(names, values, strict=True)}

    def run_separately(self, batch: Any, share: float) -> BackwardResult:
        """As `run_packed`, for this one model, computed without a pack."""
        one = self.run_alone(batch, share, has_zeros=True)
        gradients, buffers, sums = map(_add_row_dim, (one.gradients, one.buffers, one.sums))
        return BackwardResult(gradients, buffers, sums, one.counts)

    @contextmanager
    def _restoring_buffers(self) -> Iterator[dict[str, Tensor]]:
        """Restore the model's buffers on exit."""
        buffers = dict(self.model.named_buffers())
        before = [each.clone() for each in buffers.values()]
        try:
            yield buffers
        finally:
            for each, was in zip(buffers.values(), before, strict=True):
                each.copy_(was)


def _weighted_loss(value: Mean, share: float) -> Tensor:
    """The loss times a part's share of the samples. Raises `NotPackable` for (sum, count) losses of parts."""
    if share == 1.0:
        return one_mean("the loss", value)
    if isinstance(value, tuple | list):
        raise NotPackable("its loss is (sum, count), and `micro_batch_size` cuts its batches: leave one of them out")
    return one_mean("the loss", value) * share


def _add_row_dim(tensors: Tensors) -> Tensors:
    return {name: each.unsqueeze(0) for name, each in tensors.items()}


def _totals(logged: MetricSums) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Sums and counts of the logged values."""
    totals = logged.totals()
    sums = {name: torch.as_tensor(total) for name, (total, _) in totals.items()}
    return sums, {name: count for name, (_, count) in totals.items()}


@contextmanager
def _record_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record copies of the modules' outputs, of the last call of each; the model itself is ''."""
    outputs: dict[str, Tensor] = {}

    def note(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            outputs[name] = output.clone()  # a later module may write into it

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
def capture_logs(trainer: TorchTrainer) -> Iterator[MetricSums]:
    """Redirect what the trainer logs."""
    logged, before = MetricSums(), vars(trainer).get("_logged")
    vars(trainer)["_logged"] = logged
    try:
        yield logged
    finally:
        del vars(trainer)["_logged"]
        if before is not None:
            vars(trainer)["_logged"] = before
