"""The functions that losses call most often, run for all lanes by one ordinary kernel call.

`torch.func.vmap` decomposes a linear layer, a cross-entropy or attention into several times as many operations, or into
one call a lane. Kernels with a batch dimension can take the lanes as a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from math import prod
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from stagetree.packing.packability import NotPackable

CALLED = ("linear", "scaled_dot_product_attention")
"""Functions that multi-head attention calls and that a mode must see."""

PARTS = ("_in_projection_packed", "_in_projection", "multi_head_attention_forward")
"""torch's Python functions that make up multi-head attention."""


class AttentionFunctionMode(TorchFunctionMode):
    """Passes each call of a torch function to `handle_call`.

    torch hands a function written in Python to a mode as a whole and leaves the mode while it runs. A plain mode would
    miss the attention inside `nn.MultiheadAttention` and so `nn.TransformerEncoderLayer`.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.multi_head_attention_forward:
            return self._many_heads(*args, **(kwargs or {}))
        return self.handle_call(func, args, kwargs or {})

    def handle_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the call."""
        raise NotImplementedError

    @cached_property
    def _many_heads(self) -> Callable[..., Any]:
        """torch's own code with its callees replaced by `handle_call`."""
        names = {**vars(functional), "has_torch_function": lambda _: False}
        for name in CALLED:
            names[name] = partial(self._call, getattr(functional, name))
        for name in PARTS:
            torchs: FunctionType = getattr(functional, name)
            names[name] = FunctionType(torchs.__code__, names, name, torchs.__defaults__, torchs.__closure__)
        return names[PARTS[-1]]  # type: ignore[no-any-return]

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.handle_call(func, args, kwargs)


Forward = Callable[..., Any]

SDPA_BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)

SLOW_GROUP_NORM_DEVICES = frozenset({"cpu"})
"""Device types whose group-norm kernel is slow if a channel has a single number in each sample."""


class Batched(AttentionFunctionMode):
    """A mode to enter inside a function under `vmap`. lanes: the number of lanes.

    Functions and arguments that are not supported here are left to `vmap`.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self._lanes, self._level = lanes, _functorch.maybe_current_level() or 0

    def handle_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batched = BATCHED_FUNCTIONS.get(func)
        if batched is not None and _functorch.maybe_current_level() == self._level:
            with temporarily_pop_interpreter_stack():  # plain tensors: skip `vmap`'s dispatch of each operation
                result = batched(self, *args, **kwargs)
            if result is not None:
                return _functorch._add_batch_dim(result, 0, self._level)
        if func is functional.scaled_dot_product_attention:
            return _autocast_call(func, args, kwargs)
        return func(*args, **kwargs)

    def linear(self, numbers: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """[lanes, ..., out]. None for a weight that all lanes share, which `vmap` handles well."""
        if not self._has_lanes(weight) or numbers.dim() < 2:
            return None
        read, matrix = self._rows(numbers), self._rows(weight)
        flat, added = read.flatten(1, -2), None if bias is None else self._rows(bias).unsqueeze(1)
        if flat.shape[1] < matrix.shape[2] or matrix.is_complex():  # keeps the larger gradient contiguous
            product = _product(matrix, flat.mT, None if added is None else added.mT).mT
        else:
            product = _autocast_call(Product.apply, (flat, matrix, added), {})
        return product.view(self._lanes, *read.shape[1:-1], matrix.shape[1])

    def cross_entropy(
        self,
        scores: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor | None:
        """[lanes]: the mean over the batch. None for weights, label smoothing or another reduction."""
        if (weight, size_average, reduce, reduction, label_smoothing) != (None, None, None, "mean", 0.0):
            return None
        if not self._has_lanes(scores) or scores.dim() != 2 or target.dim() != 1:
            return None
        rows, targets = self._rows(scores), self._rows(target)
        if (columns := rows.mT).is_contiguous():  # the layout that `linear` returns: no transpose is needed
            each = functional.cross_entropy(columns, targets, ignore_index=ignore_index, reduction="none")
        else:
            flat, wanted = rows.flatten(0, 1), targets.flatten()
            each = functional.cross_entropy(flat, wanted, ignore_index=ignore_index, reduction="none")
            each = each.view(self._lanes, -1)
        counted = ((targets if self._has_lanes(target) else target) != ignore_index).sum(-1, keepdim=True)
        return (each / counted).sum(1)

    def batch_norm(
        self,
        numbers: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor | None:
        """[lanes, batch, channels, ...]: lanes become channels, which are normalized independently."""
        kept = [each for each in (running_mean, running_var) if each is not None]  # updated in place
        if numbers.dim() < 2 or not all(self._has_lanes(each) and self._rows(each).is_contiguous() for each in kept):
            return None
        rows = self._rows(numbers).movedim(0, 1).flatten(1, 2)
        given = (running_mean, running_var, weight, bias)
        mean, var, factor, added = (None if each is None else self._rows(each).flatten() for each in given)
        return self._split_channels(functional.batch_norm(rows, mean, var, factor, added, training, momentum, eps))

    def layer_norm(
        self,
        numbers: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        """[lanes, ...]: lanes become groups of channels, normalized independently in each sample."""
        shape = tuple(normalized_shape)
        if not (self._has_lanes(weight) or self._has_lanes(bias)) or numbers.shape[-len(shape) :] != shape:
            return None
        if numbers.device.type in SLOW_GROUP_NORM_DEVICES:
            return None
        inside = self._rows(numbers).movedim(0, -1 - len(shape))
        factor, added = (None if each is None else self._rows(each).flatten() for each in (weight, bias))
        groups = torch.group_norm(inside.reshape(-1, self._lanes * prod(shape)), self._lanes, factor, added, eps)
        return groups.view(inside.shape).movedim(-1 - len(shape), 0)

    def max_pool2d(self, numbers: Tensor, *how: Any, return_indices: bool = False, **named: Any) -> Tensor | None:
        """[lanes, batch, channels, height, width] if lanes are next to the channels in memory; else None."""
        if return_indices or not self._has_lanes(numbers) or numbers.dim() != 4:
            return None
        samples = self._rows(numbers).movedim(0, 1)
        if not samples.is_contiguous():
            return None
        pooled = functional.max_pool2d(samples.flatten(1, 2), *how, **named)
        return self._split_channels(pooled)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **how: Any,
    ) -> Tensor | None:
        """[lanes, batch, ...]. None with dropout, or with a mask that differs within the batch."""
        if dropout_p or min(query.dim(), key.dim(), value.dim()) < 3:
            return None
        if attn_mask is not None and (self._has_lanes(attn_mask) or attn_mask.dim() > 2):
            return None
        q, k, v = (self._rows(each).flatten(0, 1) for each in (query, key, value))
        with sdpa_kernel(list(SDPA_BACKENDS)):
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, **how)
        return mixed.reshape(self._lanes, -1, *mixed.shape[1:])

    @contextmanager
    def lanes_as_samples(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Within the context, these modules, equal in all lanes, see the lanes as samples of one batch.

        Their kernels need no support for `vmap`. Raises `NotPackable` if a sample's result depends on other samples.
        """
        before = {each: vars(each).get("forward") for each in modules}
        for each in before:
            vars(each)["forward"] = partial(self._run_as_samples, each, each.forward)
        try:
            yield
        finally:
            for each, forward in before.items():
                del vars(each)["forward"]
                vars(each).update({} if forward is None else {"forward": forward})

    def _run_as_samples(self, module: nn.Module, forward: Forward, numbers: Tensor, *more: Any, **how: Any) -> Any:
        compute: Forward = lambda samples: forward(samples, *more, **how)  # noqa: E731
        if _functorch.maybe_current_level() != self._level or any(map(self._has_lanes, tree_leaves((more, how)))):
            return compute(numbers)
        has_lanes, is_batch = self._has_lanes(numbers), numbers.dim() > 1
        with temporarily_pop_interpreter_stack():
            if not has_lanes:
                return compute(numbers)
            rows = self._rows(numbers)
            samples = rows.flatten(0, 1) if is_batch else rows
            result = compute(samples)
            _check_independence(module, compute, samples, result, self._lanes)
            rows = result.unflatten(0, (self._lanes, -1)) if is_batch else result
        return _functorch._add_batch_dim(rows, 0, self._level)

    def _has_lanes(self, tensor: Any) -> bool:
        """Whether the tensor has one value for each lane."""
        if not isinstance(tensor, Tensor):
            return False
        return bool(_functorch.is_batchedtensor(tensor)) and _functorch.maybe_get_level(tensor) == self._level

    def _split_channels(self, tensor: Tensor) -> Tensor:
        """[lanes, batch, channels, ...] of a tensor that has the lanes among its channels."""
        channels = tensor.shape[1] // self._lanes
        return tensor.reshape(len(tensor), self._lanes, channels, *tensor.shape[2:]).movedim(1, 0)

    def _rows(self, tensor: Tensor) -> Tensor:
        """The tensor with the lanes as its first dimension."""
        if not self._has_lanes(tensor):
            return tensor.expand(self._lanes, *tensor.shape)
        rows: Tensor = _functorch.get_unwrapped(tensor)
        return rows.movedim(_functorch.maybe_get_bdim(tensor), 0)


class Product(torch.autograd.Function):
    """A linear layer of all lanes: `numbers @ weight.mT + added`, [lanes, samples, out].

    Each gradient gets its tensor's strides. The gradients of `torch.bmm` would have others and need a copy.
    """

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
        ctx.save_for_backward(numbers, weight)
        return _product(numbers, weight.mT, added)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        numbers, weight = ctx.saved_tensors
        of_numbers, of_weight, of_added = ctx.needs_input_grad
        return (
            torch.empty_like(numbers).baddbmm_(grads, weight, beta=0) if of_numbers else None,
            grads.mT.bmm(numbers) if of_weight else None,
            grads.sum(1, keepdim=True) if of_added else None,
        )


def _product(one: Tensor, other: Tensor, added: Tensor | None) -> Tensor:
    return one.bmm(other) if added is None else torch.baddbmm(added, one, other)


def _autocast_call(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Call a function in the dtype that autocast chooses for it, with autocast off inside.

    `vmap` decomposes the function before autocast sees it. Autocast then casts the parts, some of which have no
    gradient on a GPU.
    """
    kind = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)).device.type
    if not torch.is_autocast_enabled(kind):
        return func(*args, **kwargs)
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor

    args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
    with torch.autocast(kind, enabled=False):
        return func(*args, **kwargs)


_independent_shapes: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()
"""By module: batch shapes for which its samples have been shown to be independent."""


def _check_independence(module: nn.Module, compute: Forward, samples: Tensor, result: Any, lanes: int) -> None:
    """Raises `NotPackable` unless the first lane has the same result, bit for bit, when the other samples change."""
    key, kind = (samples.shape, samples.dtype, lanes), type(module).__name__
    if key in _independent_shapes.setdefault(module, set()):
        return
    if not isinstance(result, Tensor) or len(result) != len(samples):
        raise NotPackable(f"the result of a {kind} that does not learn has no row for each sample")
    others, size = samples.detach().clone(), len(samples) // lanes
    others[size:] = others[size:] * 64 + 64 if others.is_floating_point() else 0
    with torch.no_grad():
        if not compute(others)[:size].equal(result[:size]):
            raise NotPackable(f"in a {kind} that does not learn a sample's result depends on the others of its batch")
    _independent_shapes[module].add(key)


BATCHED_FUNCTIONS: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: Batched.linear,
    functional.cross_entropy: Batched.cross_entropy,
    functional.batch_norm: Batched.batch_norm,
    functional.layer_norm: Batched.layer_norm,
    functional.max_pool2d: Batched.max_pool2d,
    functional.scaled_dot_product_attention: Batched.attention,
}


def decompose_attention() -> AbstractContextManager[None]:
    """Decompose attention that is not `Batched`.

    `vmap` would call a CPU kernel once a lane, and a GPU kernel with dropout would draw other numbers for each.
    """
    return sdpa_kernel(SDPBackend.MATH)
