"""The memory of a pack: each parameter and buffer of its models in one tensor, with a row for each lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor, nn

GRAIN = 16
"""Every lane's row begins at a multiple of so many elements: which lane a model has must not decide how it is read."""


class StackSegment:
    """The parameters that one group of an optimizer holds, one after the other in a row for each lane.

    So an optimizer that treats each number by itself has one tensor a lane to change, and not one a parameter.

    values, grads: of the parameters, [lanes, numbers in a row]. places: name, where it begins in a row, and its shape.
    """

    def __init__(self, parameters: Mapping[str, Tensor], width: int) -> None:
        first = next(iter(parameters.values()))
        self.places: list[tuple[str, int, torch.Size]] = []
        end = 0
        for name, parameter in parameters.items():
            self.places.append((name, end, parameter.shape))
            end += _rounded(parameter.numel())
        self.values = torch.zeros(width, end, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.values)

    def parts(self, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What lies in rows like these, or in one row, by parameter: views in the parameter's own shape."""
        for name, begin, shape in self.places:
            yield name, rows[..., begin : begin + prod(shape)].view((*rows.shape[:-1], *shape))


@dataclass(frozen=True, slots=True)
class StackRows:
    """What some lanes compute with, as `Stack` has it for all of them."""

    parameters: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


class Stack:
    """Room for `width` models of one shape. The rows of lanes that no model has hold numbers of no meaning.

    parameters: those that learn; constants: the others; buffers: those of the modules. Each is stacked, by its name in
    the model.
    """

    def __init__(self, model: nn.Module, groups: Sequence[Sequence[Tensor]], width: int) -> None:
        """groups: of the optimizer. What learns and is in none of them has a gradient, and a segment of its own.

        Raises ValueError for a model in which nothing learns.
        """
        self.width = width
        learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not learning:
            raise ValueError("nothing in the model learns")
        self.segments = [StackSegment(each, width) for each in _by_group(learning, groups)]
        self.parameters, self._grads = dict[str, Tensor](), dict[str, Tensor]()
        for segment in self.segments:
            self.parameters.update(segment.parts(segment.values))
            self._grads.update(segment.parts(segment.grads))
        still = {name: each for name, each in model.named_parameters() if not each.requires_grad}
        self.constants = {name: _rows(each, width) for name, each in still.items()}
        self.buffers = {name: _rows(each, width) for name, each in model.named_buffers()}
        for name, each in model.named_parameters():
            self._stacked(name).copy_(each.detach())  # a lane without a model computes at least with sound numbers
        self.shape = _shape(model)

    @property
    def device(self) -> torch.device:
        return self.segments[0].values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.segments[0].values.dtype

    def holds(self, model: nn.Module) -> bool:
        """Whether a model has the shape of those here."""
        return self.shape == _shape(model)

    def adopt(self, lane: int, model: nn.Module) -> None:
        """From here on the tensors of the model are views into the lane's rows."""
        for segment in self.segments:
            segment.values[lane].zero_()  # and what another has left between the parameters
            segment.grads[lane].zero_()
        for name, parameter in model.named_parameters():
            row = self._stacked(name)[lane]
            row.copy_(parameter.detach())
            parameter.data = row
            parameter.grad = self._grads[name][lane] if name in self._grads else None
        for name, buffer in model.named_buffers():
            self.buffers[name][lane].copy_(buffer)
            buffer.data = self.buffers[name][lane]

    @staticmethod
    def release(model: nn.Module) -> None:
        """The model has memory of its own again, with the same values."""
        for parameter in model.parameters():
            parameter.data, parameter.grad = parameter.data.clone(), None
        for buffer in model.buffers():
            buffer.data = buffer.data.clone()

    def rows(self, lanes: Sequence[int]) -> StackRows:
        """Copies of these lanes' rows, one after the other."""
        at = torch.tensor(lanes, device=self.device)
        return StackRows(_selected(self.parameters, at), _selected(self.constants, at), _selected(self.buffers, at))

    @contextmanager
    def drawn(self, lane: int, seed: int) -> Iterator[None]:
        """For a while the numbers of a lane are functions of their shapes and of `seed`."""
        chance = torch.Generator().manual_seed(seed)
        weights, buffers = _floating((self.parameters, self.constants), lane), _floating((self.buffers,), lane)
        kept = [each.clone() for each in (*weights, *buffers)]
        try:
            for each in (*weights, *buffers):
                each.copy_(_drawn(each.shape, chance))
            for each in buffers:
                each.abs_()  # a variance, for one
            yield
        finally:
            for each, before in zip((*weights, *buffers), kept, strict=True):
                each.copy_(before)

    def put(
        self, lanes: Sequence[int], gradients: Mapping[str, Tensor], buffers: Mapping[str, Tensor], add: bool
    ) -> None:
        """What the first rows of a pass have become. add: to the gradients that are there."""
        at, count = torch.tensor(lanes, device=self.device), len(lanes)
        for name, gradient in gradients.items():
            if add:
                self._grads[name].index_add_(0, at, gradient[:count])
            else:
                self._grads[name].index_copy_(0, at, gradient[:count])
        for name, buffer in buffers.items():
            self.buffers[name].index_copy_(0, at, buffer[:count])

    def clip_gradients(self, longest: float | None, lanes: Sequence[int]) -> None:
        """Shorten the gradients of these lanes as `clip_grad_norm_` would; None leaves them as they are."""
        if longest is None:
            return
        norms = torch.stack([torch.linalg.vector_norm(segment.grads, dim=1) for segment in self.segments])
        scale = torch.ones_like(norms[0])
        scale[lanes] = (longest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)[lanes]
        for segment in self.segments:
            segment.grads.mul_(scale.unsqueeze(1))

    def _stacked(self, name: str) -> Tensor:
        return self.parameters[name] if name in self.parameters else self.constants[name]


def _selected(stacked: Mapping[str, Tensor], at: Tensor) -> dict[str, Tensor]:
    return {name: each.index_select(0, at) for name, each in stacked.items()}


def _by_group(learning: Mapping[str, Tensor], groups: Sequence[Sequence[Tensor]]) -> list[dict[str, Tensor]]:
    """The parameters by the group that they are in, and by what kind of number they hold."""
    number = {id(each): index for index, group in enumerate(groups) for each in group}
    sorted_: dict[tuple[int, torch.dtype, torch.device], dict[str, Tensor]] = {}
    for name, each in learning.items():
        place = number.get(id(each), len(groups))
        sorted_.setdefault((place, each.dtype, each.device), {})[name] = each
    return [sorted_[key] for key in sorted(sorted_, key=lambda key: key[0])]


def _floating(stacked: Sequence[Mapping[str, Tensor]], lane: int) -> list[Tensor]:
    return [each[lane] for part in stacked for each in part.values() if each.is_floating_point()]


def _drawn(shape: torch.Size, chance: torch.Generator) -> Tensor:
    """Of a matrix, such that what goes through it stays as large as it is."""
    return torch.randn(shape, generator=chance) / sqrt(prod(shape[1:]))


def _rows(tensor: Tensor, width: int) -> Tensor:
    rows = tensor.new_zeros(width, _rounded(tensor.numel()))[:, : tensor.numel()].view(width, *tensor.shape)
    return rows.copy_(tensor.detach())


def _shape(model: nn.Module) -> tuple[tuple[str, object], ...]:
    return tuple((name, _kind(each)) for name, each in (*model.named_parameters(), *model.named_buffers()))


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device, bool]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _rounded(size: int) -> int:
    return size + -size % GRAIN
