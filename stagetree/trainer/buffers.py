"""A model's buffers while a batch is learned in shards: reset before each shard; their changes are added up at the
end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class ModelBuffers:
    """A model's buffers as they were before a batch.

    floats: the names of the buffers whose changes are added up.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: each.detach().clone() for name, each in self._now()}
        self._first: dict[str, Tensor] = {}
        self._is_moved: dict[str, Tensor] = {}
        self._is_first = True
        self.floats = [name for name, each in self._before.items() if _is_float(each)]

    def put_back(self) -> None:
        """Reset the buffers for the next shard."""
        if self._is_first:  # still unchanged
            return
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._before[name])

    def deltas(self, share: float) -> Iterator[Tensor]:
        """The change of each of `floats` by a shard, times its share of the batch."""
        if not share:
            yield from (torch.zeros_like(self._before[name]) for name in self.floats)
            return
        for name, each in self._now():
            if _is_float(each):
                is_other = each.detach() != self._before[name]
                moved = is_other.any()
                self._is_moved[name] = moved | self._is_moved[name] if name in self._is_moved else moved
                yield torch.where(is_other, each.detach() - self._before[name], 0).mul_(share)
            elif self._is_first:
                self._first[name] = each.detach().clone()
        self._is_first = False

    def find_changed(self, known: set[str]) -> set[str]:
        """The names in `floats` that a shard has changed and that are not in `known`."""
        names = [name for name in self._is_moved if name not in known]
        flags = torch.stack([self._is_moved[name] for name in names]).tolist() if names else []
        return {name for name, is_moved in zip(names, flags, strict=True) if is_moved}

    def finish(self, changes: dict[str, Tensor]) -> None:
        """Set the buffers to their values after the batch."""
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._first.get(name, self._before[name]))
                if name in changes:
                    each.add_(changes[name])

    def whole_numbers(self) -> list[Tensor]:
        """The integer buffers, with the values of the first shard."""
        return [each.detach() for _, each in self._now() if not _is_float(each)]

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        return self._model.named_buffers()


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
