"""What a loss calls most, for all lanes by the kernel that a model alone would call once.

`torch.func.vmap` takes a linear layer, a cross-entropy and attention apart: into several times as many operations, or
one call for each lane. Kernels that have a batch can have the lanes as a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

from stagetree.packing.function_mode import Inside
from stagetree.packing.refusals import NotPackable

Forward = Callable[..., Any]

IN_ONE = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)

BY_NUMBER = frozenset({"cpu"})
"""Kinds of devices whose kernel for groups takes one number after the other, where a channel has one in each sample."""


class Batched(Inside):
    """While it is entered, inside of a function that `vmap` calls. lanes: how many there are.

    Other functions, and other arguments, are left to `vmap`.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self._lanes, self._level = lanes, _functorch.maybe_current_level() or 0

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batched = KNOWN.get(func)
        if batched is not None and _functorch.maybe_current_level() == self._level:
            with temporarily_pop_interpreter_stack():  # plain tensors need not go through `vmap` operation by operation
                result = batched(self, *args, **kwargs)
            if result is not None:
                return _functorch._add_batch_dim(result, 0, self._level)
        if func is functional.scaled_dot_product_attention:
            return _as_autocast_does(func, args, kwargs)
        return func(*args, **kwargs)

    def linear(self, numbers: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """[lanes, ..., out]. A weight that all lanes have in common needs nothing: its rows are of all lanes."""
        if not self._has(weight) or numbers.dim() < 2:
            return None
        read, matrix = self._rows(numbers), self._rows(weight)
        flat, added = read.flatten(1, -2), None if bias is None else self._rows(bias).unsqueeze(1)
        if flat.shape[1] < matrix.shape[2] or matrix.is_complex():  # the weight's gradient, which is larger, lies as it
            product = _product(matrix, flat.mT, None if added is None else added.mT).mT
        else:
            product = _as_autocast_does(Product.apply, (flat, matrix, added), {})
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
        """[lanes]: the mean over the samples of a batch, where nothing else is asked."""
        if (weight, size_average, reduce, reduction, label_smoothing) != (None, None, None, "mean", 0.0):
            return None
        if not self._has(scores) or scores.dim() != 2 or target.dim() != 1:
            return None
        rows, targets = self._rows(scores), self._rows(target)
        if (columns := rows.mT).is_contiguous():  # as `linear` gives them: they need not be turned around
            each = functional.cross_entropy(columns, targets, ignore_index=ignore_index, reduction="none")
        else:
            flat = functional.cross_entropy(
                rows.flatten(0, 1), targets.flatten(), ignore_index=ignore_index, reduction="none"
            )
            each = flat.view(self._lanes, -1)
        counted = ((targets if self._has(target) else target) != ignore_index).sum(-1, keepdim=True)
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
        """[lanes, batch, channels, ...]: lanes are channels, as each of these is normalized by itself."""
        kept = [each for each in (running_mean, running_var) if each is not None]  # and written into
        if numbers.dim() < 2 or not all(self._has(each) and self._rows(each).is_contiguous() for each in kept):
            return None
        rows = self._rows(numbers).movedim(0, 1).flatten(1, 2)
        mean, var, factor, added = (
            None if each is None else self._rows(each).flatten() for each in (running_mean, running_var, weight, bias)
        )
        return self._of_channels(functional.batch_norm(rows, mean, var, factor, added, training, momentum, eps))

    def layer_norm(
        self,
        numbers: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        """[lanes, ...]: lanes are groups of channels, of which each is normalized by itself in each sample."""
        shape = tuple(normalized_shape)
        if not (self._has(weight) or self._has(bias)) or numbers.shape[-len(shape) :] != shape:
            return None
        if numbers.device.type in BY_NUMBER:
            return None
        inside = self._rows(numbers).movedim(0, -1 - len(shape))
        factor, added = (None if each is None else self._rows(each).flatten() for each in (weight, bias))
        groups = torch.group_norm(inside.reshape(-1, self._lanes * prod(shape)), self._lanes, factor, added, eps)
        return groups.view(inside.shape).movedim(-1 - len(shape), 0)

    def max_pool2d(self, numbers: Tensor, *how: Any, return_indices: bool = False, **named: Any) -> Tensor | None:
        """[lanes, batch, channels, height, width], where lanes lie in memory as channels do: else they are samples."""
        if return_indices or not self._has(numbers) or numbers.dim() != 4:
            return None
        samples = self._rows(numbers).movedim(0, 1)
        if not samples.is_contiguous():
            return None
        pooled = functional.max_pool2d(samples.flatten(1, 2), *how, **named)
        return self._of_channels(pooled)

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
        """[lanes, batch, ...], if nothing is drawn in it, and the same is masked in all of a batch."""
        if dropout_p or min(query.dim(), key.dim(), value.dim()) < 3:
            return None
        if attn_mask is not None and (self._has(attn_mask) or attn_mask.dim() > 2):
            return None
        q, k, v = (self._rows(each).flatten(0, 1) for each in (query, key, value))
        with sdpa_kernel(list(IN_ONE)):
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, **how)
        return mixed.reshape(self._lanes, -1, *mixed.shape[1:])

    @contextmanager
    def in_one(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """For a while these modules, which are the same in all lanes, have lanes as samples of one batch.

        Their kernels know nothing of `vmap`, and need not. Raises `NotPackable` where a sample's result depends on
        others.
        """
        before = {each: vars(each).get("forward") for each in modules}
        for each in before:
            vars(each)["forward"] = partial(self._as_samples, each, each.forward)
        try:
            yield
        finally:
            for each, forward in before.items():
                del vars(each)["forward"]
                vars(each).update({} if forward is None else {"forward": forward})

    def _as_samples(self, module: nn.Module, forward: Forward, numbers: Tensor, *more: Any, **how: Any) -> Any:
        compute: Forward = lambda samples: forward(samples, *more, **how)  # noqa: E731
        if _functorch.maybe_current_level() != self._level or any(map(self._has, tree_leaves((more, how)))):
            return compute(numbers)
        has_lanes, is_batch = self._has(numbers), numbers.dim() > 1
        with temporarily_pop_interpreter_stack():
            if not has_lanes:
                return compute(numbers)
            rows = self._rows(numbers)
            samples = rows.flatten(0, 1) if is_batch else rows
            result = compute(samples)
            _look_at(module, compute, samples, result, self._lanes)
            rows = result.unflatten(0, (self._lanes, -1)) if is_batch else result
        return _functorch._add_batch_dim(rows, 0, self._level)

    def _has(self, tensor: Any) -> bool:
        """Whether each lane has one of its own."""
        if not isinstance(tensor, Tensor):
            return False
        return bool(_functorch.is_batchedtensor(tensor)) and _functorch.maybe_get_level(tensor) == self._level

    def _of_channels(self, tensor: Tensor) -> Tensor:
        """[lanes, batch, channels, ...] of a tensor that has the lanes among its channels."""
        channels = tensor.shape[1] // self._lanes
        return tensor.reshape(len(tensor), self._lanes, channels, *tensor.shape[2:]).movedim(1, 0)

    def _rows(self, tensor: Tensor) -> Tensor:
        """With a row for each lane."""
        if not self._has(tensor):
            return tensor.expand(self._lanes, *tensor.shape)
        rows: Tensor = _functorch.get_unwrapped(tensor)
        return rows.movedim(_functorch.maybe_get_bdim(tensor), 0)


class Product(torch.autograd.Function):
    """A linear layer of all lanes: `numbers @ weight.mT + added`, [lanes, samples, out].

    Each gradient has its tensor's strides. Of `torch.bmm` a weight's is transposed, and that of numbers has the lanes
    outermost: both would be copied.
    """

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
        ctx.save_for_backward(numbers, weight)
        return numbers.bmm(weight.mT) if added is None else torch.baddbmm(added, numbers, weight.mT)

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


def _as_autocast_does(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A function that autocast computes in fewer digits, and in nothing of which it is asked again.

    `vmap` takes it apart before that, and autocast is asked for its parts: of some, a GPU has no gradient then.
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


_seen: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()
"""Modules of which samples were seen to be independent of each other, in batches of these shapes."""


def _look_at(module: nn.Module, compute: Forward, samples: Tensor, result: Any, lanes: int) -> None:
    """Raises `NotPackable` unless the first lane has the same result beside other numbers, to the bit."""
    key, kind = (samples.shape, samples.dtype, lanes), type(module).__name__
    if key in _seen.setdefault(module, set()):
        return
    if not isinstance(result, Tensor) or len(result) != len(samples):
        raise NotPackable(f"the result of a {kind} that does not learn has no row for each sample")
    others, size = samples.detach().clone(), len(samples) // lanes
    others[size:] = others[size:] * 64 + 64 if others.is_floating_point() else 0
    with torch.no_grad():
        if not compute(others)[:size].equal(result[:size]):
            raise NotPackable(f"in a {kind} that does not learn a sample's result depends on the others of its batch")
    _seen[module].add(key)


KNOWN: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: Batched.linear,
    functional.cross_entropy: Batched.cross_entropy,
    functional.batch_norm: Batched.batch_norm,
    functional.layer_norm: Batched.layer_norm,
    functional.max_pool2d: Batched.max_pool2d,
    functional.scaled_dot_product_attention: Batched.attention,
}


def attention_apart() -> AbstractContextManager[None]:
    """Where attention that is not `Batched` is taken apart.

    `vmap` would call a CPU's kernel for each lane, and a GPU's kernel with dropout draws otherwise for each.
    """
    return sdpa_kernel(SDPBackend.MATH)
