"""The memory of a pack: each parameter and buffer of its models in one tensor, with a row for each lane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from stagetree.packing.constants import find_constants, is_opaque, is_same, opaque_modules
from stagetree.packing.rows import Selection, StackBuffers, StackSegment

MAX_SELECTIONS = 256
"""Selections of rows that are cached: most packs use a few."""


@dataclass(frozen=True, slots=True)
class StackRows:
    """The tensors that some lanes compute with. numbers: the lanes of the rows.

    parameters: require gradients. buffers: copies that a pass may write into. flat_buffers: the memory of most of
    these, like `StackBuffers.flat`, if the rows are all of the stack. constants: frozen parameters. opaque: the modules
    with opaque weights.
    """

    numbers: Sequence[int]
    parameters: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    flat_buffers: Sequence[Tensor] = ()
    opaque: Sequence[str] = ()


class Stack:
    """Memory for `width` models of one shape. Rows without a model hold unused numbers.

    parameters: not the frozen ones. buffers: of the modules. Both are stacked, by their names in the model. constants:
    see `find_constants`; all models share them.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[Sequence[Tensor]], width: int, has_constants: bool = True
    ) -> None:
        """groups: of the optimizer. Learning parameters in none of them get a segment of their own.

        has_constants: otherwise frozen parameters may change, and are treated as buffers.

        Raises ValueError for a model in which nothing learns.
        """
        self.width = width
        learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not learning:
            raise ValueError("nothing in the model learns")
        in_blocks = dict(_block_parameters(model))
        self.segments = [StackSegment(each, width, in_blocks) for each in _group_by_optimizer(learning, groups)]
        self.parameters = _parts(self.segments, [each.values for each in self.segments])
        self._grads = _parts(self.segments, [each.grads for each in self.segments])
        self._leaves = {name: each.detach().requires_grad_() for name, each in self.parameters.items()}
        still = {name: each.data for name, each in find_constants(model).items()}
        self.constants = still if has_constants else {}
        plain = {name for name, each in model.named_parameters() if not is_opaque(each)}
        self._pass_constants = {name: each for name, each in self.constants.items() if name in plain}
        self._opaque = tuple(opaque_modules(model))
        buffers = dict(model.named_buffers()) | ({} if has_constants else still)
        self._buffers = [StackBuffers(each, width) for each in _group_by_device(buffers)]
        self.buffers = _parts(self._buffers, [each.flat for each in self._buffers])
        self._taken = set[int]()
        for name, each in self._own(model):
            self._row_tensor(name).copy_(each.detach())  # so that rows without a model compute valid numbers
        self.shape = _shape(model)
        self._selections: dict[tuple[tuple[int, ...], torch.device], Selection] = {}

    @property
    def device(self) -> torch.device:
        return self.segments[0].values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.segments[0].values.dtype

    @property
    def low_precision_constants(self) -> Sequence[str]:
        """Names of the constants with fewer digits than the parameters that learn."""
        floating = ((name, each) for name, each in self._pass_constants.items() if each.is_floating_point())
        return [name for name, each in floating if each.itemsize < self.dtype.itemsize]

    def holds(self, model: nn.Module) -> bool:
        """Whether a model has the shape of this stack, and equal constants."""
        return self.shape == _shape(model) and all(
            is_same(each.data, self.constants[name])
            for name, each in find_constants(model).items()
            if name in self.constants
        )

    def adopt(self, lane: int, model: nn.Module) -> None:
        """Make the model's tensors views of the lane's row, and share the stack's constants with it."""
        self._taken.add(lane)
        for segment in self.segments:
            segment.values[lane].zero_()  # padding between the parameters included
            segment.grads[lane].zero_()
        for name, each in find_constants(model).items() if self.constants else ():
            each.data = self.constants[name]
        for name, each in self._own(model):
            row = self._row_tensor(name)[lane]
            row.copy_(each.detach())
            each.data = row
            each.grad = self._grads[name][lane] if name in self._grads else None

    def release(self, lane: int, model: nn.Module) -> None:
        """Give the model memory of its own again, with the same values; constants stay shared."""
        self._taken.discard(lane)
        for _, each in self._own(model):
            each.data, each.grad = each.data.clone(), None

    def selection(self, numbers: Sequence[int], device: torch.device | None = None) -> Selection:
        """The cached selection of these rows on a device."""
        key = tuple(numbers), device or self.device
        if key not in self._selections:
            if len(self._selections) >= MAX_SELECTIONS:
                self._selections.clear()
            self._selections[key] = Selection(*key)
        return self._selections[key]

    def rows(self, numbers: Sequence[int] | None = None) -> StackRows:
        """All rows of the stack, or copies of these lanes' rows."""
        if numbers is None:
            flat = [each.flat.clone() for each in self._buffers]
            buffers = _parts(self._buffers, flat)
            buffers |= {name: each.contiguous() for name, each in buffers.items() if each.dim() > 1}
            parameters = self._leaves | self._block_copies([each.values for each in self.segments])
            return StackRows(range(self.width), parameters, self._pass_constants, buffers, flat, self._opaque)
        at = self.selection(numbers)
        copies = [at.copy(each.values) for each in self.segments]
        parameters = {name: each.detach().requires_grad_() for name, each in _parts(self.segments, copies).items()}
        parameters |= self._block_copies(copies)
        buffers = {name: at.copy(each) for name, each in self.buffers.items()}
        return StackRows(at.numbers, parameters, self._pass_constants, buffers, opaque=self._opaque)

    def _block_copies(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Copies of the parameters that a pass reads in blocks; they require gradients."""
        blocks = (each for segment, some in zip(self.segments, rows, strict=True) for each in segment.blocks(some))
        return {name: each.requires_grad_() for name, each in blocks}

    @contextmanager
    def random_weights(self, lane: int, seed: int) -> Iterator[None]:
        """Within the context, a lane's numbers are random functions of their shapes and `seed`."""
        chance = torch.Generator().manual_seed(seed)
        weights = [*_rows_of(self.parameters, lane), *_floating(self._pass_constants.values())]
        buffers = _rows_of(self.buffers, lane)
        before_all = [each.clone() for each in (*weights, *buffers)]
        try:
            for each in (*weights, *buffers):
                scale = sqrt(prod(each.shape[1:]))  # keeps the scale of activations
                each.copy_(torch.randn(each.shape, generator=chance) / scale)
            for each in buffers:
                each.abs_()  # it may be a variance
            yield
        finally:
            for each, before in zip((*weights, *buffers), before_all, strict=True):
                each.copy_(before)

    @contextmanager
    def upcast_constants(self, model: nn.Module) -> Iterator[None]:
        """Within the context, low-precision constants have the dtype of the parameters, in passes and in an adopted
        model.

        A base model in bf16 is then computed in single precision, with the same weights.
        """
        before = {name: self._pass_constants[name] for name in self.low_precision_constants}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        try:
            for name, each in before.items():
                self._pass_constants[name] = parameters[name].data = each.to(self.dtype)
            yield
        finally:
            for name, each in before.items():
                self._pass_constants[name] = parameters[name].data = each

    def write_gradients(
        self, lanes: Sequence[int], rows: Sequence[int], gradients: Mapping[str, Tensor], add: bool
    ) -> None:
        """Store the gradients of lanes, found in `rows`. add: add to the existing gradients."""
        size = len(next(iter(gradients.values())))
        if size == self.width and [*lanes] == [*rows] and self._taken <= {*lanes}:
            lanes = rows = range(size)  # the other rows have no model
        into, out_of = self.selection(lanes), self.selection(rows)
        is_direct = not add and into.is_run and out_of.is_run and len(rows) == size
        for segment in self.segments:
            if is_direct:
                segment.join(gradients, out=into.select(segment.grads))
                continue
            gradient = out_of.select(segment.join(gradients))
            into.write(segment.grads, into.select(segment.grads).add(gradient) if add else gradient)

    def write_buffers(
        self, lanes: Sequence[int], rows: Sequence[int], buffers: Mapping[str, Tensor], flat: Sequence[Tensor]
    ) -> None:
        """Store the buffers after a pass. flat: as in `StackRows`."""
        at_once = frozenset[str]()
        if flat and self._taken <= {*lanes}:
            for stored, after in zip(self._buffers, flat, strict=True):
                stored.flat.copy_(after)
            parts = _parts(self._buffers, flat)
            at_once = frozenset(name for name, each in parts.items() if each.data_ptr() == buffers[name].data_ptr())
        for name, each in self.buffers.items():
            if name in buffers and name not in at_once:
                self.selection(lanes).write(each, self.selection(rows).select(buffers[name]))

    def clip_gradients(self, longest: float | None, lanes: Sequence[int]) -> None:
        """Clip the gradients of these lanes as `clip_grad_norm_` does; None leaves them as they are.

        The norm is computed over all rows, since a sum over fewer may have another order.
        """
        if longest is None:
            return
        norms = [torch.linalg.vector_norm(segment.grads, dim=1) for segment in self.segments]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
        members = self.selection(lanes)
        scale = members.select((longest / (norm + 1e-6)).clamp(max=1.0)).unsqueeze(1)
        for segment in self.segments:
            members.write_back(segment.grads, members.select(segment.grads).mul_(scale))

    def _own(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors that have a row for each lane."""
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if name in self.parameters or name in self.buffers:
                yield name, each

    def _row_tensor(self, name: str) -> Tensor:
        return self.parameters[name] if name in self.parameters else self.buffers[name]


def _parts(segments: Sequence[StackSegment | StackBuffers], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: part for segment, each in zip(segments, rows, strict=True) for name, part in segment.parts(each)}


def _group_by_optimizer(tensors: Mapping[str, Tensor], groups: Sequence[Sequence[Tensor]]) -> list[dict[str, Tensor]]:
    """Group tensors by optimizer group, dtype and device."""
    number = {id(each): index for index, group in enumerate(groups) for each in group}
    sorted_: dict[tuple[int, torch.dtype, torch.device], dict[str, Tensor]] = {}
    for name, each in tensors.items():
        place = number.get(id(each), len(groups))
        sorted_.setdefault((place, each.dtype, each.device), {})[name] = each
    return [sorted_[key] for key in sorted(sorted_, key=lambda key: key[0])]


def _group_by_device(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    sorted_: dict[torch.device, dict[str, Tensor]] = {}
    for name, each in tensors.items():
        sorted_.setdefault(each.device, {})[name] = each
    return list(sorted_.values())


def _block_parameters(model: nn.Module) -> Iterator[tuple[str, int]]:
    """The parameters that kernels read contiguously, and the dimension before which their lanes are inserted.

    Lanes become channels of one call or, for embeddings, further columns of the table. Otherwise each would be copied
    separately.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, _ConvNd | _BatchNorm | nn.LayerNorm | nn.Embedding):
            for name, _ in module.named_parameters(prefix, recurse=False):
                yield name, int(isinstance(module, nn.Embedding))


def _floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each for each in tensors if each.is_floating_point()]


def _rows_of(stacked: Mapping[str, Tensor], lane: int) -> list[Tensor]:
    return _floating(each[lane] for each in stacked.values())


def _shape(model: nn.Module) -> tuple[tuple[object, ...], ...]:
    named = (*model.named_parameters(), *model.named_buffers(), *find_constants(model).items())
    return tuple((name, each.shape, each.dtype, each.device, each.requires_grad) for name, each in named)
