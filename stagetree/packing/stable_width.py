"""How many rows a pass has, and which of them are for lanes: those that make the same of the same numbers, to the bit.

torch's kernels for a CPU take a tensor by whole vectors, and what is left over at its end number by number: there a sum
is added up in another order, and a function is another approximation. In a pass these are numbers of its last rows, so
behind those of lanes it has some that nobody reads. How many is looked for with the same weights in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.constants import opaque_modules
from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.rows import batch_of
from stagetree.packing.stack import Stack
from stagetree.trainer import generators
from stagetree.trainer.tensors import map_tensors

DRAWS = 6
"""Of weights: rows that add up in another order agree on at most a quarter of them."""

BEHIND = (0, 1, 2, 4, 8, 16, 32, 64)
"""How many rows behind those of lanes are tried."""

AT_ONCE = 128
"""Bytes: kernels take two vectors of AVX-512 at once."""

APART = 1 << 22
"""Bytes that a lane keeps of a batch for its backward pass, for each core: with more, several lanes do not fit into a
cache, and what they compute together takes longer than one after the other."""

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class StableWidth:
    """rows: of a pass. lanes: how many of the first ones are for lanes. exact: whether these have, on all weights that
    were tried, the gradients and buffers that a model alone has, to the bit. is_apart: whether a pass is that of one
    model alone."""

    rows: int
    lanes: int
    exact: bool
    is_apart: bool = False


_found: dict[tuple[object, ...], StableWidth] = {}


def stable_width(stack: Stack, lane: Lane, batch: Any) -> StableWidth:
    """The rows of passes over batches of this shape, for lanes like this one; searched for once in a process.

    The result does not depend on the weights of the lane. Nothing is changed. Raises whatever the loss raises.
    """
    shapes = _shapes(batch_of(batch, lane.number))
    key = (type(lane.trainer), lane.batch_key, stack.shape, stack.width, shapes)
    if key not in _found:
        with generators.kept(lane.device):
            _found[key] = _looked_for(stack, lane, batch, shapes)
    return _found[key]


def _looked_for(stack: Stack, lane: Lane, batch: Any, shapes: Shapes) -> StableWidth:
    if _is_large(stack, lane, batch_of(batch, lane.number)):
        return StableWidth(1, 1, exact=True, is_apart=True)
    samples = min((shape[0] for shape, _ in shapes if shape), default=1)
    best = StableWidth(stack.width, 0, False)
    for rows in _candidates(stack, samples * (2 if lane.is_coarse else stack.dtype.itemsize)):
        agreeing, exact = _agreeing(stack, lane, batch, rows)
        if agreeing > best.lanes:
            best = StableWidth(rows, min(agreeing, stack.width), exact)
        if agreeing >= stack.width:
            break
    return best


def _is_large(stack: Stack, lane: Lane, batch: Any) -> bool:
    """Whether a core of a CPU has no room for what several lanes compute."""
    if stack.device.type != "cpu" or opaque_modules(lane.model):
        return False
    with stack.drawn(lane.number, 0):  # a loss may write into what all lanes have, and be refused for it later
        return Loss(lane.trainer).kept_bytes(batch) > APART * torch.get_num_threads()


def _candidates(stack: Stack, size: int) -> Iterator[int]:
    """Numbers of rows of which no lane has what is left over of a tensor with so many bytes in a row.

    Nor of one with a multiple of them, as all have that hold numbers of each sample. That is not left to looking: most
    numbers are the same by either approximation of a function. A GPU has one approximation for all numbers.
    """
    has_leftovers = stack.device.type == "cpu"
    for behind in BEHIND:
        if not has_leftovers or (stack.width + behind) * size % AT_ONCE <= behind * size:
            yield stack.width + behind


def _agreeing(stack: Stack, lane: Lane, batch: Any, rows: int) -> tuple[int, bool]:
    """How many of the first rows have the same, and whether it is what the model alone has."""
    loss, at = Loss(lane.trainer), generators.state(lane.device)
    agree, exact = torch.ones(rows, dtype=torch.bool, device=stack.device), True
    for draw in range(DRAWS):
        with stack.drawn(lane.number, draw):
            generators.restore(at, lane.device)
            packed = loss.packed(stack.rows([lane.number] * rows), batch)
            generators.restore(at, lane.device)
            alone = loss.alone(batch_of(batch, lane.number))
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
