"""Searches the number of rows of a pass for which all lanes compute the same bits from the same numbers.

CPU kernels process a tensor in whole vectors, and the remainder at its end number by number, where sums have another
order and functions another approximation. In a pass that remainder is in the last rows. A pass therefore has padding
rows after the rows of the lanes. Their number is searched with equal weights in every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.constants import opaque_modules
from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.rows import lane_batch
from stagetree.packing.stack import Stack
from stagetree.trainer import generators
from stagetree.trainer.tensors import map_tensors

WEIGHT_DRAWS = 6
"""Random weights tried: rows that add in another order agree on at most a quarter of them."""

PADDING_ROWS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Numbers of padding rows to try."""

VECTOR_BYTES = 128
"""Bytes: CPU kernels process two AVX-512 vectors at once."""

MAX_SAVED_BYTES = 1 << 22
"""Bytes a core that a lane saves for its backward pass. Above it, several lanes do not fit into a cache, and are slower
together than one after the other."""

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class StableWidth:
    """rows: of a pass. lanes: how many of the first rows lanes may use. exact: these rows have the gradients and
    buffers of a model alone, bit for bit, for all weights tried. is_single: each lane has a pass of its own model."""

    rows: int
    lanes: int
    exact: bool
    is_single: bool = False


_cache: dict[tuple[object, ...], StableWidth] = {}


def stable_width(stack: Stack, lane: Lane, batch: Any) -> StableWidth:
    """The rows of passes over batches of this shape, for lanes like this one; searched once a process.

    Does not depend on the lane's weights and changes nothing. Raises the errors of the loss.
    """
    shapes = _shapes(lane_batch(batch, lane.number))
    key = (type(lane.trainer), lane.batch_key, stack.shape, stack.width, shapes)
    if key not in _cache:
        with generators.preserve(lane.device):
            _cache[key] = _search(stack, lane, batch, shapes)
    return _cache[key]


def _search(stack: Stack, lane: Lane, batch: Any, shapes: Shapes) -> StableWidth:
    if _is_large(stack, lane, lane_batch(batch, lane.number)):
        return StableWidth(1, 1, exact=True, is_single=True)
    samples = min((shape[0] for shape, _ in shapes if shape), default=1)
    best = StableWidth(stack.width, 0, False)
    for rows in _candidates(stack, samples * (2 if lane.has_reduced_precision else stack.dtype.itemsize)):
        agreeing, exact = _count_agreeing(stack, lane, batch, rows)
        if agreeing > best.lanes:
            best = StableWidth(rows, min(agreeing, stack.width), exact)
        if agreeing >= stack.width:
            break
    return best


def _is_large(stack: Stack, lane: Lane, batch: Any) -> bool:
    """Whether the activations of several lanes do not fit into a CPU core's cache."""
    if stack.device.type != "cpu" or opaque_modules(lane.model):
        return False
    with stack.random_weights(lane.number, 0):  # a loss may write into shared tensors; it is refused for that later
        return Loss(lane.trainer).saved_bytes(batch) > MAX_SAVED_BYTES * torch.get_num_threads()


def _candidates(stack: Stack, size: int) -> Iterator[int]:
    """Numbers of rows for which the remainder of a tensor with `size` bytes a row lies in padding rows.

    The same holds for multiples of `size`, as tensors with numbers of each sample have. Testing alone does not find
    that: most numbers are equal in either approximation. A GPU has no such remainder.
    """
    has_leftovers = stack.device.type == "cpu"
    for behind in PADDING_ROWS:
        if not has_leftovers or (stack.width + behind) * size % VECTOR_BYTES <= behind * size:
            yield stack.width + behind


def _count_agreeing(stack: Stack, lane: Lane, batch: Any, rows: int) -> tuple[int, bool]:
    """The number of first rows that agree, and whether they agree with the model alone."""
    loss, at = Loss(lane.trainer), generators.state(lane.device)
    agree, exact = torch.ones(rows, dtype=torch.bool, device=stack.device), True
    for draw in range(WEIGHT_DRAWS):
        with stack.random_weights(lane.number, draw):
            generators.restore(at, lane.device)
            packed = loss.run_packed(stack.rows([lane.number] * rows), batch)
            generators.restore(at, lane.device)
            alone = loss.run_alone(lane_batch(batch, lane.number))
        for each in (*packed.gradients.values(), *packed.buffers.values(), *packed.sums.values()):
            bits = _bits(each)
            agree &= (bits == bits[:1]).all(dim=1)
        exact &= _is_same(packed, alone)
    return int(agree.cumprod(dim=0).sum()), exact


def _is_same(packed: BackwardResult, alone: BackwardResult) -> bool:
    """Whether the first row equals the model alone."""
    pairs = ((packed.gradients, alone.gradients), (packed.buffers, alone.buffers))
    return all(
        name in one and bool((_bits(each[:1]) == _bits(one[name].unsqueeze(0))).all())
        for many, one in pairs
        for name, each in many.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of each row, so that NaNs compare by their bits."""
    return tensor.detach().contiguous().view(len(tensor), -1).view(torch.uint8)


def _shapes(batch: Any) -> Shapes:
    shapes: list[tuple[torch.Size, torch.dtype]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append((tensor.shape, tensor.dtype))
        return tensor

    map_tensors(batch, note)
    return tuple(shapes)
