"""What has a row for each lane of a pack: several tensors in a row, some of the rows, batches, and sums by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from stagetree.trainer.base import MetricSums

GRAIN = 128
"""Every lane's row begins at a multiple of so many bytes, two vectors of AVX-512: which lane a model has must not
decide how it is read."""


class Selection:
    """Some rows of tensors with a row for each lane: a view where they follow each other, and else a copy.

    The index is made once, on the device, so that using it waits for nothing.
    """

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        self.numbers = tuple(numbers)
        first = self.numbers[0]
        self.is_run = self.numbers == tuple(range(first, first + len(self.numbers)))
        self._run = slice(first, first + len(self.numbers))
        self._index = torch.tensor(self.numbers, device=device)

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self._run] if self.is_run else tensor.index_select(0, self._index)

    def copy(self, tensor: Tensor) -> Tensor:
        """As `of`, and never a view; without gaps."""
        return self.of(tensor).clone(memory_format=torch.contiguous_format) if self.is_run else self.of(tensor)

    def write(self, tensor: Tensor, rows: Tensor) -> None:
        """Have other rows in their place."""
        if self.is_run:
            tensor[self._run].copy_(rows)
        else:
            tensor.index_copy_(0, self._index, rows)

    def write_back(self, tensor: Tensor, rows: Tensor) -> None:
        """Have rows in their place that `of` gave, and that were changed since."""
        if not self.is_run:
            self.write(tensor, rows)


class StackSegment:
    """The parameters that one group of an optimizer holds, one after the other in a row for each lane.

    So what an optimizer does to each number has one tensor to change, and not one a parameter.

    values, grads: of the parameters, [lanes, numbers in a row]. places: name, where it begins in a row, and its shape.
    """

    def __init__(self, parameters: Mapping[str, Tensor], width: int, in_blocks: Mapping[str, int]) -> None:
        """in_blocks: the names of what `blocks` copies, and before which of its dimensions a copy has the lanes."""
        first = next(iter(parameters.values()))
        self.places: list[tuple[str, int, torch.Size]] = []
        end = 0
        for name, each in parameters.items():
            self.places.append((name, end, each.shape))
            end += rounded(each)
        self.values = torch.zeros(width, end, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.values)
        self._gaps = [first.new_zeros(1, rounded(each) - each.numel()) for each in parameters.values()]
        self._in_blocks = [
            (*place, dim)
            for place in self.places
            if (dim := in_blocks.get(place[0])) is not None and prod(place[2][dim:]) % _in_a_grain(first) == 0
        ]
        self._grains: dict[int, Tensor] = {}

    def parts(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What lies in rows like these, or in one row, by name: views in the tensor's own shape."""
        for name, begin, shape in self.places:
            yield name, rows[..., begin : begin + prod(shape)].view((*rows.shape[:-1], *shape))

    def blocks(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """As `parts`, of what fills whole grains, in blocks: without gaps between lanes, copied by one operation."""
        if not self._in_blocks:
            return
        if len(rows) not in self._grains:
            self._grains[len(rows)] = self._grains_of(rows)
        copies = rows.view(-1, _in_a_grain(rows)).index_select(0, self._grains[len(rows)]).view(-1)
        begin = 0
        for name, _, shape, dim in self._in_blocks:
            end = begin + len(rows) * prod(shape)
            yield name, copies[begin:end].view(*shape[:dim], len(rows), *shape[dim:]).movedim(dim, 0)
            begin = end

    def _grains_of(self, rows: Tensor) -> Tensor:
        """Which ones of rows like these are in blocks, one block after the other."""
        size, blocks = _in_a_grain(rows), list[Tensor]()
        lanes = torch.arange(len(rows), device=rows.device).unsqueeze(1) * (rows.shape[1] // size)
        for _, begin, shape, dim in self._in_blocks:
            inner = prod(shape[dim:]) // size
            grains = torch.arange(begin // size, begin // size + prod(shape) // size, device=rows.device)
            blocks.append((grains.view(-1, 1, inner) + lanes).flatten())
        return torch.cat(blocks)

    def join(self, tensors: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Rows like `values` from tensors with a row for each lane each."""
        pieces = list[Tensor]()
        for (name, _, shape), gap in zip(self.places, self._gaps, strict=True):
            each = tensors[name]
            pieces.append(each.flatten(1) if shape else each.unsqueeze(1))
            if gap.numel():
                pieces.append(gap.expand(len(each), -1))
        return torch.cat(pieces, dim=1) if out is None else torch.cat(pieces, dim=1, out=out)


class StackBuffers:
    """Buffers of all kinds of numbers, in a block with a row for each lane each, all in one tensor of bytes, `flat`.

    So a pass, which may write into them, has copies of all by one operation.
    """

    def __init__(self, buffers: Mapping[str, Tensor], width: int) -> None:
        first = next(iter(buffers.values()))
        self._width = width
        self._places: list[tuple[str, int, int, torch.Size, torch.dtype]] = []
        end = 0
        for name, each in buffers.items():
            self._places.append((name, end, rounded(each), each.shape, each.dtype))
            end += width * rounded(each) * each.itemsize
        self.flat = torch.zeros(end, dtype=torch.uint8, device=first.device)

    def parts(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The buffers in a tensor like `flat`, by name: views with a row for each lane.

        Each has a version of its own: writing into one says nothing of another.
        """
        for name, begin, size, shape, dtype in self._places:
            rows = flat[begin : begin + self._width * size * dtype.itemsize].view(dtype).view(self._width, size)
            yield name, rows[:, : prod(shape)].view(self._width, *shape).data


def rounded(tensor: Tensor) -> int:
    """How many numbers it takes in a row, with the gap behind it."""
    return tensor.numel() + -tensor.numel() % _in_a_grain(tensor)


def _in_a_grain(tensor: Tensor) -> int:
    """How many numbers of this kind fill one."""
    return max(GRAIN // tensor.element_size(), 1)


class OwnBatches(dict[int, Any]):
    """Batches of lanes that read the same data in orders of their own: one for each, by their numbers.

    A pass has a row of samples for each of them. Rows that nobody reads learn from the first of them.
    """

    def __missing__(self, number: int) -> Any:
        return next(iter(self.values()))

    def of(self, numbers: Sequence[int]) -> OwnBatches:
        return OwnBatches((number, self[number]) for number in numbers)


def batch_of(batch: Any, number: int) -> Any:
    """What a lane learns from, of what all or each of some learn from."""
    return batch[number] if isinstance(batch, OwnBatches) else batch


def form_of(batch: Any) -> tuple[object, ...]:
    """Equal of batches that have a row each in one pass: all but the numbers in their tensors."""
    if isinstance(batch, OwnBatches):
        return tuple((number, form_of(each)) for number, each in batch.items())
    leaves, nest = tree_flatten(batch)
    return repr(nest), *(_form(leaf) for leaf in leaves)  # older ones of torch have no hash


def _form(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return (type(leaf), leaf) if isinstance(leaf, bool | int | float | str | None) else id(leaf)


class RowSums:
    """What several lanes have logged, added up for all of them at once, until one of them is asked for its own.

    rows: of each, in the tensors that are added, which are like `like`. What a lane has logged before comes first.
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
            each.elsewhere = self

    def is_of(self, rows: Mapping[MetricSums, int], size: int) -> bool:
        """Whether all that have a part in this are among these, in the same rows of as many."""
        return self._size == size and self._rows.items() <= rows.items()

    def add(self, sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
        """By name: the sums of a pass, a row for each lane, and of how many values each is."""
        for name, total in sums.items():
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + counts[name]

    def leave(self, who: MetricSums) -> Iterator[tuple[str, Tensor, int]]:
        """Name, sum and count of each of its values; later ones are no more its own."""
        row, before = self._rows.pop(who), self._before.pop(who)
        counts = {name: before.get(name, 0) + self._counts.get(name, 0) for name in self._sums}
        return ((name, self._sums[name][row], count) for name, count in counts.items() if count)


def log(rows: Mapping[MetricSums, int], sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
    """Hand lanes the values that they have logged in a pass. rows: of each, in the sums."""
    like = next(iter(sums.values()))
    shared = {each.elsewhere for each in rows if each.elsewhere is not None and each.elsewhere.is_of(rows, len(like))}
    others = {each: row for each, row in rows.items() if each.elsewhere not in shared}
    for place in (*shared, *([RowSums(others, like)] if others else [])):
        place.add(sums, counts)
