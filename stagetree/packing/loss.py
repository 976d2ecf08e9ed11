"""The gradients of many models on one batch, by one call of the user's own `loss`.

How many rows a pass has, and which of them are for lanes: those that make the same of the same numbers, to the bit.

torch's kernels for a CPU take a tensor by whole vectors, and what is left over at its end number by number: there a sum
is added up in another order, and a function is another approximation. In a pass these are numbers of its last rows, so
behind those of lanes it has some that nobody reads. How many is looked for with the same weights in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from stagetree.packing.lane import Lane, NotPackable
from stagetree.packing.stack import Stack, StackRows
from stagetree.trainer import generators
from stagetree.trainer.base import MetricSums
from stagetree.trainer.tensors import Mean, map_tensors, one_mean
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


DRAWS = 6
"""Of weights: rows that add up in another order agree on at most a quarter of them."""

BEHIND = (0, 1, 2, 4, 8, 16, 32, 64)
"""How many rows behind those of lanes are tried."""

AT_ONCE = 128
"""Bytes: kernels take two vectors of AVX-512 at once."""

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class StableWidth:
    """rows: of a pass. lanes: how many of the first ones are for lanes. exact: whether these have, on all weights that
    were tried, the gradients and buffers that a model alone has, to the bit."""

    rows: int
    lanes: int
    exact: bool


_found: dict[tuple[object, ...], StableWidth] = {}


def stable_width(stack: Stack, lane: Lane, batch: Any) -> StableWidth:
    """The rows of passes over batches of this shape, for lanes like this one; searched for once in a process.

    The result does not depend on the weights of the lane. Nothing is changed. Raises whatever the loss raises.
    """
    shapes = _shapes(batch)
    key = (type(lane.trainer), lane.batch_key, stack.shape, stack.width, shapes)
    if key not in _found:
        with generators.kept(lane.device):
            _found[key] = _looked_for(stack, lane, batch, shapes)
    return _found[key]


def _looked_for(stack: Stack, lane: Lane, batch: Any, shapes: Shapes) -> StableWidth:
    samples = min((shape[0] for shape, _ in shapes if shape), default=1)
    best = StableWidth(stack.width, 0, False)
    for rows in _candidates(stack.width, samples * (2 if lane.is_coarse else stack.dtype.itemsize)):
        agreeing, exact = _agreeing(stack, lane, batch, rows)
        if agreeing > best.lanes:
            best = StableWidth(rows, min(agreeing, stack.width), exact)
        if agreeing >= stack.width:
            break
    return best


def _candidates(width: int, size: int) -> Iterator[int]:
    """Numbers of rows of which no lane has what is left over of a tensor with so many bytes in a row.

    Nor of one with a multiple of them, as all have that hold numbers of each sample. That is not left to looking: most
    numbers are the same by either approximation of a function.
    """
    for behind in BEHIND:
        if (width + behind) * size % AT_ONCE <= behind * size:
            yield width + behind


def _agreeing(stack: Stack, lane: Lane, batch: Any, rows: int) -> tuple[int, bool]:
    """How many of the first rows have the same, and whether it is what the model alone has."""
    loss, at = Loss(lane.trainer), generators.state(lane.device)
    agree, exact = torch.ones(rows, dtype=torch.bool, device=stack.device), True
    for draw in range(DRAWS):
        with stack.drawn(lane.number, draw):
            generators.restore(at, lane.device)
            packed = loss.packed(stack.rows([lane.number] * rows), batch)
            generators.restore(at, lane.device)
            alone = loss.alone(batch)
        for each in _results(packed):
            bits = _bits(each)
            agree &= (bits == bits[:1]).all(dim=1)
        exact &= _is_same(packed, alone)
    return int(agree.cumprod(dim=0).sum()), exact


def _results(packed: BackwardResult) -> Iterable[Tensor]:
    return (*packed.gradients.values(), *packed.buffers.values(), *packed.sums.values())


def _is_same(packed: BackwardResult, alone: BackwardResult) -> bool:
    """Whether the first row has what the model alone has."""
    pairs = ((packed.gradients, alone.gradients), (packed.buffers, alone.buffers))
    return all(
        name in one and bool((_bits(each[:1]) == _bits(one[name].unsqueeze(0))).all())
        for many, one in pairs
        for name, each in many.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    """Row by row, so that a NaN is what it is."""
    return tensor.detach().contiguous().view(len(tensor), -1).view(torch.uint8)


def _shapes(batch: Any) -> Shapes:
    shapes: list[tuple[torch.Size, torch.dtype]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append((tensor.shape, tensor.dtype))
        return tensor

    map_tensors(batch, note)
    return tuple(shapes)
