"""Tensors with a row for each lane of a pack: segments of parameters, buffers, selections of rows, batches and sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from stagetree.trainer.base import MetricSums

ALIGNMENT = 128
"""Each lane's row begins at a multiple of this many bytes, two AVX-512 vectors, so that the lane does not decide how
a kernel reads it."""


class Selection:
    """Some rows of tensors with a row for each lane: a view if they are consecutive, else a copy.

    The index is created on the device once, so that its use does not synchronize.
    """

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        self.numbers = tuple(numbers)
        first = self.numbers[0]
        self.is_run = self.numbers == tuple(range(first, first + len(self.numbers)))
        self._run = slice(first, first + len(self.numbers))
        self._index = torch.tensor(self.numbers, device=device)

    def select(self, tensor: Tensor) -> Tensor:
        return tensor[self._run] if self.is_run else tensor.index_select(0, self._index)

    def copy(self, tensor: Tensor) -> Tensor:
        """As `select`, but always a contiguous copy."""
        return self.select(tensor).clone(memory_format=torch.contiguous_format) if self.is_run else self.select(tensor)

    def write(self, tensor: Tensor, rows: Tensor) -> None:
        """Overwrite the selected rows."""
        if self.is_run:
            tensor[self._run].copy_(rows)
        else:
            tensor.index_copy_(0, self._index, rows)

    def write_back(self, tensor: Tensor, rows: Tensor) -> None:
        """Store rows that `select` returned and that were changed since."""
        if not self.is_run:
            self.write(tensor, rows)


class StackSegment:
    """The parameters of one optimizer group, concatenated in a row for each lane.

    An elementwise optimizer so has one tensor to change instead of one a parameter.

    values, grads: [lanes, numbers in a row]. places: name, offset in a row, and shape.
    """

    def __init__(self, parameters: Mapping[str, Tensor], width: int, in_blocks: Mapping[str, int]) -> None:
        """in_blocks: the parameters that `blocks` copies, and the dimension before which the lanes are inserted."""
        first = next(iter(parameters.values()))
        self.places: list[tuple[str, int, torch.Size]] = []
        end = 0
        for name, each in parameters.items():
            self.places.append((name, end, each.shape))
            end += aligned_size(each)
        self.values = torch.zeros(width, end, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.values)
        self._gaps = [first.new_zeros(1, aligned_size(each) - each.numel()) for each in parameters.values()]
        self._in_blocks = [
            (*place, dim)
            for place in self.places
            if (dim := in_blocks.get(place[0])) is not None and prod(place[2][dim:]) % _numbers_per_piece(first) == 0
        ]
        self._piece_indices: dict[int, Tensor] = {}

    def parts(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parameters in rows like these, or in one row, by name: views in their own shapes."""
        for name, begin, shape in self.places:
            yield name, rows[..., begin : begin + prod(shape)].view((*rows.shape[:-1], *shape))

    def blocks(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """As `parts`, for the block parameters: contiguous over lanes, all copied by one operation."""
        if not self._in_blocks:
            return
        if len(rows) not in self._piece_indices:
            self._piece_indices[len(rows)] = self._block_indices(rows)
        copies = rows.view(-1, _numbers_per_piece(rows)).index_select(0, self._piece_indices[len(rows)]).view(-1)
        begin = 0
        for name, _, shape, dim in self._in_blocks:
            end = begin + len(rows) * prod(shape)
            yield name, copies[begin:end].view(*shape[:dim], len(rows), *shape[dim:]).movedim(dim, 0)
            begin = end

    def _block_indices(self, rows: Tensor) -> Tensor:
        """Indices of the aligned pieces of the block parameters, one parameter after the other."""
        size, blocks = _numbers_per_piece(rows), list[Tensor]()
        lanes = torch.arange(len(rows), device=rows.device).unsqueeze(1) * (rows.shape[1] // size)
        for _, begin, shape, dim in self._in_blocks:
            inner = prod(shape[dim:]) // size
            grains = torch.arange(begin // size, begin // size + prod(shape) // size, device=rows.device)
            blocks.append((grains.view(-1, 1, inner) + lanes).flatten())
        return torch.cat(blocks)

    def join(self, tensors: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Concatenate tensors with a row for each lane to rows like `values`."""
        pieces = list[Tensor]()
        for (name, _, shape), gap in zip(self.places, self._gaps, strict=True):
            each = tensors[name]
            pieces.append(each.flatten(1) if shape else each.unsqueeze(1))
            if gap.numel():
                pieces.append(gap.expand(len(each), -1))
        return torch.cat(pieces, dim=1) if out is None else torch.cat(pieces, dim=1, out=out)


class StackBuffers:
    """Buffers of all dtypes, each with a row for each lane, in one byte tensor, `flat`.

    A pass may write into buffers, and so copies all of them by one operation.
    """

    def __init__(self, buffers: Mapping[str, Tensor], width: int) -> None:
        first = next(iter(buffers.values()))
        self._width = width
        self._places: list[tuple[str, int, int, torch.Size, torch.dtype]] = []
        end = 0
        for name, each in buffers.items():
            self._places.append((name, end, aligned_size(each), each.shape, each.dtype))
            end += width * aligned_size(each) * each.itemsize
        self.flat = torch.zeros(end, dtype=torch.uint8, device=first.device)

    def parts(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The buffers in a tensor like `flat`, by name: views with a row for each lane.

        Each view has its own version counter.
        """
        for name, begin, size, shape, dtype in self._places:
            rows = flat[begin : begin + self._width * size * dtype.itemsize].view(dtype).view(self._width, size)
            yield name, rows[:, : prod(shape)].view(self._width, *shape).data


def aligned_size(tensor: Tensor) -> int:
    """The numbers that a tensor takes in a row, with the padding behind it."""
    return tensor.numel() + -tensor.numel() % _numbers_per_piece(tensor)


def _numbers_per_piece(tensor: Tensor) -> int:
    """Numbers of this dtype in an aligned piece."""
    return max(ALIGNMENT // tensor.element_size(), 1)


class LaneBatches(dict[int, Any]):
    """Batches by lane number, for lanes that read the same data in orders of their own.

    A pass has samples for every row. Other rows get the first batch.
    """

    def __missing__(self, number: int) -> Any:
        return next(iter(self.values()))

    def select(self, numbers: Sequence[int]) -> LaneBatches:
        return LaneBatches((number, self[number]) for number in numbers)


def lane_batch(batch: Any, number: int) -> Any:
    """A lane's batch."""
    return batch[number] if isinstance(batch, LaneBatches) else batch


def batch_structure(batch: Any) -> tuple[object, ...]:
    """A key equal for batches that fit into one pass: everything except the numbers in tensors."""
    if isinstance(batch, LaneBatches):
        return tuple((number, batch_structure(each)) for number, each in batch.items())
    leaves, nest = tree_flatten(batch)
    return repr(nest), *(_leaf_structure(leaf) for leaf in leaves)  # in older versions of torch it is not hashable


def _leaf_structure(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return (type(leaf), leaf) if isinstance(leaf, bool | int | float | str | None) else id(leaf)


class RowSums:
    """Logged sums of several lanes, added for all of them at once until one lane asks for its own.

    rows: the row of each in the added tensors, which are like `like`. Values that a lane logged before are included.
    """

    def __init__(self, rows: Mapping[MetricSums, int], like: Tensor) -> None:
        self._rows, self._size = dict(rows), len(like)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._before: dict[MetricSums, dict[str, int]] = {}
        for each, row in rows.items():
            totals = each.totals()
            for name, (total, _) in totals.items():
                self._sums.setdefault(name, torch.zeros_like(like))[row] = total
            self._before[each] = {name: count for name, (_, count) in totals.items()}
            each.clear()
            each.row_sums = self

    def covers(self, rows: Mapping[MetricSums, int], size: int) -> bool:
        """Whether all of these lanes are among `rows`, in the same rows of tensors of this size."""
        return self._size == size and self._rows.items() <= rows.items()

    def add(self, sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
        """Add the sums of a pass, a row a lane, and the number of values in each."""
        for name, total in sums.items():
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + counts[name]

    def leave(self, who: MetricSums) -> Iterator[tuple[str, Tensor, int]]:
        """Remove a lane. Yields name, sum and count of each of its values."""
        row, before = self._rows.pop(who), self._before.pop(who)
        counts = {name: before.get(name, 0) + self._counts.get(name, 0) for name in self._sums}
        return ((name, self._sums[name][row], count) for name, count in counts.items() if count)


def log_rows(rows: Mapping[MetricSums, int], sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
    """Log the sums of a pass. rows: each lane's row in the sums."""
    like = next(iter(sums.values()))
    shared = {each.row_sums for each in rows if each.row_sums is not None and each.row_sums.covers(rows, len(like))}
    others = {each: row for each, row in rows.items() if each.row_sums not in shared}
    for place in (*shared, *([RowSums(others, like)] if others else [])):
        place.add(sums, counts)
