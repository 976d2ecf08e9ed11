"""Records the random numbers that a model draws, and makes them equal alone and in a pack for a comparison.

torch fills a tensor in memory order. A tensor with lanes has another layout than one without, so after a transposition
dropout drops other numbers in a pack than alone, with the same generator. That is no error of the loss. A comparison
therefore fills each tensor in index order, and records its layout. Attention with dropout is one fused GPU kernel that
draws internally: a comparison decomposes it, as a pack does.
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

from stagetree.packing.attention_mode import AttentionFunctionMode
from stagetree.packing.batched import decompose_attention

Draw = tuple[str, str, object]
"""The drawing module, the operation if it fills in an order of its own, and sizes and strides."""

DROPOUT = torch.ops.aten.native_dropout.default
"""The fused dropout of GPUs outside of a pack, which draws in an order of its own."""

ATTENTION = "attention"
"""A part of the names of fused attention operations: without dropout they draw nothing, with it they refuse a pack."""


class DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which random fills depend on a tensor's shape and not on its memory layout.

    model: its modules are named in the records. drawn: the recorded draws, in order.
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
    def record_modules(self) -> Iterator[None]:
        """Enter the mode, attention included, and attribute draws to modules."""
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with DropoutAttentionMode(self), self:
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


class DropoutAttentionMode(AttentionFunctionMode):
    """A mode that decomposes attention with dropout, and records where it would be one fused kernel outside of a
    pack."""

    def __init__(self, draws: DrawRecorder) -> None:
        super().__init__()
        self._draws = draws

    def handle_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_dropped = func is scaled_dot_product_attention and (kwargs.get("dropout_p") or any(args[4:5]))
        if not is_dropped:
            return func(*args, **kwargs)
        query = kwargs["query"] if "query" in kwargs else args[0]
        if query.is_cuda and _functorch.maybe_current_level() is None:
            self._draws.note(ATTENTION, query)
        with decompose_attention():
            return func(*args, **kwargs)


def first_differing_module(one: Sequence[Draw], other: Sequence[Draw]) -> str:
    """The module of the first draw that differs in order; empty if none does."""
    for mine, theirs in zip_longest(one, other):
        if mine is None or theirs is None or mine[1:] != theirs[1:]:
            return (mine or theirs)[0] or "the loss"
    return ""
