"""Batches of lanes that read the same data in orders of their own: a pass has a row of samples for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten


class OwnBatches(dict[int, Any]):
    """A batch for each of some lanes, by their numbers. Rows that nobody reads learn from the first of them."""

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
    return nest, *(_form(leaf) for leaf in leaves)


def _form(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return (type(leaf), leaf) if isinstance(leaf, bool | int | float | str | None) else id(leaf)
