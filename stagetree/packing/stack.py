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

from stagetree.packing.constants import constants_of, is_opaque, is_same, opaque_modules
from stagetree.packing.rows import Selection, StackBuffers, StackSegment

MOST_SELECTIONS = 256
"""Of rows are kept: most packs meet a few."""


@dataclass(frozen=True, slots=True)
class StackRows:
    """What some lanes compute with, as `Stack` has it for all of them. numbers: of the lanes, row by row.

    Parameters can be differentiated by. Buffers are copies, which a pass may write into. flat_buffers: what most of
    these are in, like `StackBuffers.flat`, if the rows are all of the stack. constants: parameters with numbers of
    their own. opaque: the modules that have others.
    """

    numbers: Sequence[int]
    parameters: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    flat_buffers: Sequence[Tensor] = ()
    opaque: Sequence[str] = ()


class Stack:
    """Room for `width` models of one shape. The rows of lanes that no model has hold numbers of no meaning.

    parameters: the ones that learn. buffers: of the modules. Each is stacked, by its name in the model. constants:
    what does not learn, as `constants_of` has it, which all models have in common.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[Sequence[Tensor]], width: int, has_constants: bool = True
    ) -> None:
        """groups: of the optimizer. What learns and is in none of them has a gradient, and a segment of its own.

        has_constants: else parameters that do not learn may change, and are buffers here.

        Raises ValueError for a model in which nothing learns.
        """
        self.width = width
        learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not learning:
            raise ValueError("nothing in the model learns")
        in_blocks = dict(_in_blocks(model))
        self.segments = [StackSegment(each, width, in_blocks) for each in _by_group(learning, groups)]
        self.parameters = _parts(self.segments, [each.values for each in self.segments])
        self._grads = _parts(self.segments, [each.grads for each in self.segments])
        self._leaves = {name: each.detach().requires_grad_() for name, each in self.parameters.items()}
        still = {name: each.data for name, each in constants_of(model).items()}
        self.constants = still if has_constants else {}
        plain = {name for name, each in model.named_parameters() if not is_opaque(each)}
        self._passed = {name: each for name, each in self.constants.items() if name in plain}
        self._opaque = tuple(opaque_modules(model))
        buffers = dict(model.named_buffers()) | ({} if has_constants else still)
        self._kept = [StackBuffers(each, width) for each in _by_device(buffers)]
        self.buffers = _parts(self._kept, [each.flat for each in self._kept])
        self._taken = set[int]()
        for name, each in self._own(model):
            self._stacked(name).copy_(each.detach())  # a lane without a model computes at least with sound numbers
        self.shape = _shape(model)
        self._selections: dict[tuple[tuple[int, ...], torch.device], Selection] = {}

    @property
    def device(self) -> torch.device:
        return self.segments[0].values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.segments[0].values.dtype

    @property
    def coarse(self) -> Sequence[str]:
        """Constants of fewer digits than what learns, by name."""
        floating = ((name, each) for name, each in self._passed.items() if each.is_floating_point())
        return [name for name, each in floating if each.itemsize < self.dtype.itemsize]

    def holds(self, model: nn.Module) -> bool:
        """Whether a model has the shape of those here, and the same constants."""
        return self.shape == _shape(model) and all(
            is_same(each.data, self.constants[name])
            for name, each in constants_of(model).items()
            if name in self.constants
        )

    def adopt(self, lane: int, model: nn.Module) -> None:
        """From here on the tensors of the model are views into the lane's rows, and its constants are those here."""
        self._taken.add(lane)
        for segment in self.segments:
            segment.values[lane].zero_()  # and what another has left between the parameters
            segment.grads[lane].zero_()
        for name, each in constants_of(model).items() if self.constants else ():
            each.data = self.constants[name]
        for name, each in self._own(model):
            row = self._stacked(name)[lane]
            row.copy_(each.detach())
            each.data = row
            each.grad = self._grads[name][lane] if name in self._grads else None

    def release(self, lane: int, model: nn.Module) -> None:
        """The model has memory of its own again, with the same values, but for the constants."""
        self._taken.discard(lane)
        for _, each in self._own(model):
            each.data, each.grad = each.data.clone(), None

    def selection(self, numbers: Sequence[int], device: torch.device | None = None) -> Selection:
        """Of these rows, for tensors on the device, or on another; it is made once."""
        key = tuple(numbers), device or self.device
        if key not in self._selections:
            if len(self._selections) >= MOST_SELECTIONS:
                self._selections.clear()
            self._selections[key] = Selection(*key)
        return self._selections[key]

    def rows(self, numbers: Sequence[int] | None = None) -> StackRows:
        """All rows of the stack as they are in it, or copies of these lanes' rows, one after the other."""
        if numbers is None:
            flat = [each.flat.clone() for each in self._kept]
            buffers = _parts(self._kept, flat)
            buffers |= {name: each.contiguous() for name, each in buffers.items() if each.dim() > 1}
            parameters = self._leaves | self._in_blocks([each.values for each in self.segments])
            return StackRows(range(self.width), parameters, self._passed, buffers, flat, self._opaque)
        at = self.selection(numbers)
        copies = [at.copy(each.values) for each in self.segments]
        parameters = {name: each.detach().requires_grad_() for name, each in _parts(self.segments, copies).items()}
        parameters |= self._in_blocks(copies)
        buffers = {name: at.copy(each) for name, each in self.buffers.items()}
        return StackRows(at.numbers, parameters, self._passed, buffers, opaque=self._opaque)

    def _in_blocks(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Of rows of the segments, copies of what a pass reads in blocks: it can be differentiated by, too."""
        blocks = (each for segment, some in zip(self.segments, rows, strict=True) for each in segment.blocks(some))
        return {name: each.requires_grad_() for name, each in blocks}

    @contextmanager
    def drawn(self, lane: int, seed: int) -> Iterator[None]:
        """For a while the numbers of a lane are functions of their shapes and of `seed`."""
        chance = torch.Generator().manual_seed(seed)
        weights = [*_rows_of(self.parameters, lane), *_floating(self._passed.values())]
        buffers = _rows_of(self.buffers, lane)
        before_all = [each.clone() for each in (*weights, *buffers)]
        try:
            for each in (*weights, *buffers):
                each.copy_(_drawn(each.shape, chance))
            for each in buffers:
                each.abs_()  # a variance, for one
            yield
        finally:
            for each, before in zip((*weights, *buffers), before_all, strict=True):
                each.copy_(before)

    @contextmanager
    def widened(self, model: nn.Module) -> Iterator[None]:
        """For a while constants of fewer digits than what learns have as many: in passes, and in an adopted model.

        So a base in bf16 is computed in single precision, with the numbers that it has.
        """
        before = {name: self._passed[name] for name in self.coarse}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        try:
            for name, each in before.items():
                self._passed[name] = parameters[name].data = each.to(self.dtype)
            yield
        finally:
            for name, each in before.items():
                self._passed[name] = parameters[name].data = each

    def put(self, lanes: Sequence[int], rows: Sequence[int], gradients: Mapping[str, Tensor], add: bool) -> None:
        """The gradients of lanes, those in so many `rows`. add: to the gradients that are there."""
        size = len(next(iter(gradients.values())))
        if size == self.width and [*lanes] == [*rows] and self._taken <= {*lanes}:
            lanes = rows = range(size)  # the others belong to no model
        into, out_of = self.selection(lanes), self.selection(rows)
        is_direct = not add and into.is_run and out_of.is_run and len(rows) == size
        for segment in self.segments:
            if is_direct:
                segment.join(gradients, out=into.of(segment.grads))
                continue
            gradient = out_of.of(segment.join(gradients))
            into.write(segment.grads, into.of(segment.grads).add(gradient) if add else gradient)

    def put_buffers(
        self, lanes: Sequence[int], rows: Sequence[int], buffers: Mapping[str, Tensor], flat: Sequence[Tensor]
    ) -> None:
        """The same, of buffers after a pass; a model by itself has its modules' only. flat: as in `StackRows`."""
        at_once = frozenset[str]()
        if flat and self._taken <= {*lanes}:
            for stored, after in zip(self._kept, flat, strict=True):
                stored.flat.copy_(after)
            at_once = frozenset(name for name, each in _parts(self._kept, flat).items() if _is_in(each, buffers[name]))
        for name, each in self.buffers.items():
            if name in buffers and name not in at_once:
                self.selection(lanes).write(each, self.selection(rows).of(buffers[name]))

    def clip_gradients(self, longest: float | None, lanes: Sequence[int]) -> None:
        """Shorten the gradients of these lanes as `clip_grad_norm_` would; None leaves them as they are.

        The norm is taken of all rows, since a sum over fewer may have another order.
        """
        if longest is None:
            return
        norms = [torch.linalg.vector_norm(segment.grads, dim=1) for segment in self.segments]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
        members = self.selection(lanes)
        scale = members.of((longest / (norm + 1e-6)).clamp(max=1.0)).unsqueeze(1)
        for segment in self.segments:
            members.write_back(segment.grads, members.of(segment.grads).mul_(scale))

    def _own(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Of a model, what has a row for each lane."""
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if name in self.parameters or name in self.buffers:
                yield name, each

    def _stacked(self, name: str) -> Tensor:
        return self.parameters[name] if name in self.parameters else self.buffers[name]


def _parts(segments: Sequence[StackSegment | StackBuffers], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: part for segment, each in zip(segments, rows, strict=True) for name, part in segment.parts(each)}


def _is_in(tensor: Tensor, other: Tensor) -> bool:
    return tensor.data_ptr() == other.data_ptr()


def _by_group(tensors: Mapping[str, Tensor], groups: Sequence[Sequence[Tensor]]) -> list[dict[str, Tensor]]:
    """Tensors by the group that they are in, and by what kind of number they hold."""
    number = {id(each): index for index, group in enumerate(groups) for each in group}
    sorted_: dict[tuple[int, torch.dtype, torch.device], dict[str, Tensor]] = {}
    for name, each in tensors.items():
        place = number.get(id(each), len(groups))
        sorted_.setdefault((place, each.dtype, each.device), {})[name] = each
    return [sorted_[key] for key in sorted(sorted_, key=lambda key: key[0])]


def _by_device(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    sorted_: dict[torch.device, dict[str, Tensor]] = {}
    for name, each in tensors.items():
        sorted_.setdefault(each.device, {})[name] = each
    return list(sorted_.values())


def _in_blocks(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Names of the parameters that kernels read without gaps, and before which dimension their lanes are then.

    Lanes are channels of one call, or, in a table of embeddings, further numbers of each entry. Each parameter would be
    copied by itself.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, _ConvNd | _BatchNorm | nn.LayerNorm | nn.Embedding):
            for name, _ in module.named_parameters(prefix, recurse=False):
                yield name, int(isinstance(module, nn.Embedding))


def _floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each for each in tensors if each.is_floating_point()]


def _rows_of(stacked: Mapping[str, Tensor], lane: int) -> list[Tensor]:
    return _floating(each[lane] for each in stacked.values())


def _drawn(shape: torch.Size, chance: torch.Generator) -> Tensor:
    """Of a matrix, such that what goes through it stays as large as it is."""
    return torch.randn(shape, generator=chance) / sqrt(prod(shape[1:]))


def _shape(model: nn.Module) -> tuple[tuple[str, object], ...]:
    named = (*model.named_parameters(), *model.named_buffers(), *constants_of(model).items())
    return tuple((name, _kind(each)) for name, each in named)


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device, bool]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad
