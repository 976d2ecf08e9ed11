"""Random numbers that a model draws alone and in a pack, made the same for a comparison, and noted where they are not.

torch fills a tensor in the order in which it lies in memory. A tensor with lanes lies in memory in another way than one
without: after a transposition, dropout drops other numbers in a pack than alone, with the same generator. That is no
error of the loss. So a comparison has each tensor filled in the order of its places, and notes how it lies in memory.
Attention with dropout is one kernel of a GPU, which draws within itself: a comparison takes it apart, as a pack does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from stagetree.packing.batched import attention_apart
from stagetree.packing.function_mode import Inside

Draw = tuple[str, str, object]
"""The module in which random numbers were drawn, the operation if it has an order of its own, and sizes and strides."""

DROPOUT = torch.ops.aten.native_dropout.default
"""The operation that a GPU has for dropout outside of a pack; it draws in an order of its own."""

ATTENTION = "attention"
"""In the names of operations that draw within a kernel: without dropout nothing, and with it they refuse a pack."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, what is drawn into a tensor depends on the tensor's shape and not on its layout in memory.

    model: whose modules are named. drawn: what was drawn so far, first to last.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[Draw] = []
        self._model, self._inside = model, [""]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_random = torch.Tag.nondeterministic_seeded in func.tags and args and isinstance(args[0], Tensor)
        if not is_random or ATTENTION in func.name():
            return func(*args, **kwargs)
        if func is DROPOUT:
            return self._dropout(*args)
        into = args[0] if func._schema.name.endswith("_") else None
        self.note("", args[0] if into is not None else torch.empty_like(args[0]))
        drawn = func(args[0].clone(memory_format=torch.contiguous_format), *args[1:], **kwargs)
        return drawn if into is None else into.copy_(drawn)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Be entered, attention included, and know which module draws."""
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with DroppedAttention(self), self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self, *_: object) -> None:
        self._inside.pop()

    def note(self, own_order: str, tensor: Tensor) -> None:
        strides = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        self.drawn.append((self._inside[-1], own_order, tuple(strides)))

    def _dropout(self, tensor: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        if train is False or not 0 < p < 1:
            dropped: tuple[Tensor, Tensor] = DROPOUT(tensor, p, train)
            return dropped
        self.note("native_dropout", tensor)
        mask = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).bernoulli_(1 - p)
        return tensor * mask / (1 - p), mask.bool()


class DroppedAttention(Inside):
    """While it is entered, attention with dropout is taken apart, and noted where it would be one kernel by itself."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_dropped = func is scaled_dot_product_attention and (kwargs.get("dropout_p") or any(args[4:5]))
        if not is_dropped:
            return func(*args, **kwargs)
        query = kwargs["query"] if "query" in kwargs else args[0]
        if query.is_cuda and _functorch.maybe_current_level() is None:
            self._draws.note(ATTENTION, query)
        with attention_apart():
            return func(*args, **kwargs)


def first_unlike(one: Sequence[Draw], other: Sequence[Draw]) -> str:
    """The module of the first draw that is in another order; empty if all are alike."""
    for mine, theirs in zip_longest(one, other):
        if mine is None or theirs is None or mine[1:] != theirs[1:]:
            return (mine or theirs)[0] or "the loss"
    return ""
