"""Checks before the first step that a model has the same gradients in a pack as alone, up to rounding.

The gradients of one batch with random weights are compared. Random numbers inside the model, such as dropout's, are
fixed meanwhile. Where a pack would draw others, `DrawRecorder` records the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from stagetree.packing.batched import AttentionFunctionMode, decompose_attention
from stagetree.packing.fallback import FallbackStep
from stagetree.packing.lane import Lane
from stagetree.packing.loss import BackwardResult, Loss
from stagetree.packing.packability import NotPackable, explain_error
from stagetree.packing.rows import lane_batch
from stagetree.packing.stack import Stack
from stagetree.trainer import generators
from stagetree.trainer.generators import GeneratorStates

TOLERANCE = {torch.float64: 1e-9}
"""The relative difference that a gradient may have from the model's own, by dtype."""

DEFAULT_TOLERANCE = 1e-2

ROUNDING_FACTOR = 2.0
"""In bf16 or TF32, a packed gradient may be this many times as far from single precision as the model's own gradient.
Deep networks have rounding errors of several percent."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of one batch. own: in the trainer's precision. single: in the parameters' precision; the same
    object if these are equal. drawn: the random draws."""

    own: BackwardResult
    single: BackwardResult
    drawn: Sequence[Draw]


class GradientCheck:
    """Checks the lanes of one stack, without changing it."""

    def __init__(self, stack: Stack, attempts: FallbackStep) -> None:
        self._stack, self._fallback = stack, attempts

    def mismatches(self, bucket: Sequence[Lane]) -> list[Lane]:
        """The lanes whose own gradients differ from the first lane's in a pass, for lanes with one batch key.

        All are computed with the same weights. Sets `other_draws` of the lanes that agree. Raises `NotPackable` for the
        first lane itself.
        """
        lead = bucket[0]
        batch, share, at = self._batch(lead)
        plain, draws = lane_batch(batch, lead.number), lead.has_own_batches and at != lead.generators
        self._fallback.groups([lead], batch)  # search for the stable width first, without recording draws
        with lead.record_reads():
            packed = self._sample(lead, at, lambda: self._fallback.run_packed([lead], batch, share))
        mismatches: list[Lane] = []
        for lane in bucket:
            try:
                alone = self._sample(lane, at, lambda lane=lane: Loss(lane.trainer).run_alone(plain, share))  # type: ignore[misc]
                is_near = self._is_near(lead, packed, alone) and (lane is lead or not draws)
            except NotPackable:
                if lane is lead:
                    raise
                is_near = False
            if is_near:
                lane.other_draws = first_differing_module(alone.drawn, packed.drawn)
            else:
                mismatches.append(lane)
        return mismatches

    def explain_mismatch(self, lane: Lane) -> NotPackable:
        """Why a lane's gradients differ in a pass from its own."""
        batch, _, at = self._batch(lane)
        loss, own, numbers = Loss(lane.trainer), lane_batch(batch, lane.number), [lane.number] * self._stack.width
        packed = self._run_in_full_precision(lane, at, lambda: loss.outputs(batch, self._stack.rows(numbers)))
        alone = self._run_in_full_precision(lane, at, lambda: loss.outputs(own))
        name = next((name for name in alone if name not in packed or self._is_far(packed[name], alone[name])), None)
        if name is None:
            return NotPackable(
                "packed, its loss is another, though all modules give the same: it depends on something that is no "
                "tensor, or reaches parameters by another way than the model"
            )
        kind = type(lane.model.get_submodule(name)).__name__
        module = f"`{name}` ({kind})" if name else f"the whole model ({kind})"
        return NotPackable(f"packed, its loss is another: the first module with another output is {module}")

    def _batch(self, lane: Lane) -> tuple[Any, float, GeneratorStates]:
        """The samples of a lane's next pass, their share of the batch, and the generator states after reading them."""
        generators.restore(lane.generators, lane.device)
        try:
            with lane.record_reads():
                batch, share = lane.first_batch()
        except NotPackable:
            raise
        except Exception as error:
            raise explain_error(error) from error
        return batch, share, generators.state(lane.device)

    def _sample(self, lane: Lane, at: GeneratorStates, learn: Callable[[], BackwardResult]) -> Sample:
        draws = DrawRecorder(lane.model)
        with draws.record_modules():
            own = self._run_with_random_weights(lane, at, learn)
        if not (lane.has_rounded_products or self._stack.low_precision_constants):
            return Sample(own, own, draws.drawn)
        return Sample(own, self._run_in_full_precision(lane, at, learn), draws.drawn)

    def _run_in_full_precision(self, lane: Lane, at: GeneratorStates, find: Callable[[], Found]) -> Found:
        """The result computed in the precision of the parameters that learn.

        Frozen parameters stay in bf16 if the loss needs it, for example because it casts its batch.
        """
        with lane.full_precision(), DrawRecorder(lane.model).record_modules():
            try:
                return self._run_with_random_weights(lane, at, find, self._stack.upcast_constants(lane.model))
            except NotPackable:
                if not self._stack.low_precision_constants:
                    raise
                return self._run_with_random_weights(lane, at, find)

    def _run_with_random_weights(
        self,
        lane: Lane,
        at: GeneratorStates,
        find: Callable[[], Found],
        drawn_in: AbstractContextManager[None] | None = None,
    ) -> Found:
        """The result with random weights and the generators at `at`. Raises `NotPackable`.

        drawn_in: a context to enter after the weights are drawn.
        """
        generators.restore(at, lane.device)
        try:
            with self._stack.random_weights(lane.number, seed=0), drawn_in or nullcontext():
                before = self._versions()
                result = find()
                written = next((name for name, version in self._versions().items() if version != before[name]), None)
        except Exception as error:
            raise explain_error(error) from error
        if written is not None:
            raise NotPackable(f"its loss writes into {written}, which does not learn and all trials share: see buffers")
        return result

    def _versions(self) -> dict[str, int]:
        """Version counters of the tensors that all models share; torch increments them on writes."""
        return {name: each._version for name, each in self._stack.constants.items()}

    def _is_near(self, lead: Lane, packed: Sample, alone: Sample) -> bool:
        """Whether gradients agree up to rounding. Raises `NotPackable` for missing gradients."""
        missing = packed.own.gradients.keys() - alone.own.gradients.keys()
        if missing:
            raise NotPackable(f"its parameter {min(missing)} has no gradient")
        exact = alone.single.gradients
        bound = self._tolerance * _length(exact.values()) + 1e-12
        rounding = 0.0 if alone.own is alone.single else _distance(alone.own.gradients, exact)
        own, single = _row_of(lead, packed.own), _row_of(lead, packed.single)
        return not (_distance(single, exact) > bound or _distance(own, exact) > max(bound, ROUNDING_FACTOR * rounding))

    def _is_far(self, packed: Tensor, alone: Tensor) -> bool:
        return packed.shape != alone.shape or _length([packed - alone]) > self._tolerance * _length([alone])

    @property
    def _tolerance(self) -> float:
        return TOLERANCE.get(self._stack.dtype, DEFAULT_TOLERANCE)


def _row_of(lane: Lane, result: BackwardResult) -> dict[str, Tensor]:
    """One lane's gradients."""
    row = result.rows([lane.number])[0]
    return {name: each[row] for name, each in result.gradients.items()}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return _length([each - other[name] for name, each in one.items()])


def _length(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in tensors]).norm())


Draw = tuple[str, str, object]
"""The drawing module, the operation if it fills in an order of its own, and sizes and strides."""

DROPOUT = torch.ops.aten.native_dropout.default
"""The fused dropout of GPUs outside of a pack, which draws in an order of its own."""

ATTENTION = "attention"
"""A part of the names of fused attention operations: without dropout they draw nothing, with it they refuse a pack."""


class DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which random fills depend on a tensor's shape and not on its memory layout.

    torch fills a tensor in memory order. A tensor with lanes has another layout than one without, so after a
    transposition dropout drops other numbers in a pack than alone, with the same generator. That is no error of the
    loss. Attention with dropout is one fused GPU kernel that draws internally: it is decomposed, as in a pack.

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
