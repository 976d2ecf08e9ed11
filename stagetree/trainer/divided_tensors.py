"""Tensors that are divided among ranks, and their conversion between numbers of ranks.

A divided tensor is a torch `DTensor` on a one-dimensional mesh, as `fully_shard` makes them: each rank has some of its
rows. A checkpoint stores each rank's rows in a part of its own. A reader takes the rows that it needs, with one
process, the same number of ranks, or more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor


class Unsavable(TypeError):
    """A state holds something that cannot be saved.

    place: the keys and indices that lead to it from the state, which the message writes as `state["opt"][0]`.
    problem: the rest of the sentence.
    """

    def __init__(self, problem: str, place: Sequence[Any] = ()) -> None:
        super().__init__(f"{indexed_path('state', place)} {problem}")
        self.problem, self.place = problem, tuple(place)


def indexed_path(name: str, place: Sequence[Any]) -> str:
    """The place of a value in an object of that name: `state["opt"][0]`."""
    return name + "".join(f"[{json.dumps(each) if isinstance(each, str) else repr(each)}]" for each in place)


class Parted:
    """A tensor of a checkpoint that was divided when it was saved. shape: of the whole.

    parts: the offset in the whole of each rank's part, and the part.
    """

    def __init__(self, shape: Sequence[int], parts: Sequence[tuple[Sequence[int], Tensor]]) -> None:
        self.shape, self._parts = tuple(shape), parts

    def whole(self) -> Tensor:
        """The whole tensor, copied if it has several parts. Raises ValueError."""
        return self.take([0] * len(self.shape), self.shape)

    def take(self, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A block of the tensor, without a copy if it is exactly one part. Raises ValueError if a part is missing."""
        for at, part in self._parts:
            if tuple(at) == tuple(begin) and tuple(part.shape) == tuple(shape):
                return part
        tensor = torch.empty(tuple(shape), dtype=self._parts[0][1].dtype)
        missing = tensor.numel()
        for at, part in self._parts:
            overlap = [(max(a, b), min(a + m, b + n)) for a, m, b, n in zip(at, part.shape, begin, shape, strict=True)]
            if all(first < end for first, end in overlap):
                there = tuple(slice(first - b, end - b) for (first, end), b in zip(overlap, begin, strict=True))
                here = tuple(slice(first - a, end - a) for (first, end), a in zip(overlap, at, strict=True))
                tensor[there] = part[here]
                missing -= prod(end - first for first, end in overlap)
        if missing:
            raise ValueError(f"of a tensor of shape {list(self.shape)}, {missing} numbers are in no part that was read")
        return tensor


def is_divided(tensor: Tensor) -> bool:
    """Whether this process has only some of the tensor's numbers."""
    return any(not each.is_replicate() for each in getattr(tensor, "placements", ()))


def local(tensor: Any) -> Tensor:
    """This process's rows of a divided tensor, or any other tensor itself."""
    mine: Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return mine


def whole_of(tensor: Any) -> Tensor:
    """The whole tensor, on every rank; all of them must call this."""
    all_of_it: Tensor = tensor.full_tensor() if hasattr(tensor, "placements") else tensor
    return all_of_it


def place_of(tensor: Any, name: str = "a tensor") -> dict[str, list[int]]:
    """The shape of a divided tensor, and the offset of this process's rows. Raises `Unsavable`."""
    mesh, (placement, *others) = tensor.device_mesh, tensor.placements
    if others or type(placement).__name__ != "Shard":
        problem = f"is divided as {tensor.placements}, and only a mesh of one dimension is supported"
        raise Unsavable(problem, name.split("."))
    shape, begin = list(tensor.shape), [0] * tensor.dim()
    length = shape[placement.dim]
    begin[placement.dim] = min(length, mesh.get_local_rank() * -(-length // mesh.size()))
    return {"shape": shape, "begin": begin}


def reshard_like(saved: Tensor | Parted, tensor: Tensor) -> Tensor:
    """A saved tensor, divided like another one. Raises ValueError if their shapes differ."""
    if not is_divided(tensor):
        return whole(saved)
    if tuple(saved.shape) != tuple(tensor.shape):
        raise ValueError(f"a tensor of shape {list(saved.shape)} cannot be one of shape {list(tensor.shape)}")
    if isinstance(saved, Tensor) and is_divided(saved):
        return saved  # saved by this very process
    source = saved if isinstance(saved, Parted) else Parted(saved.shape, [((0,) * saved.dim(), saved)])
    mine = local(tensor)
    return divide_like(source.take(place_of(tensor)["begin"], mine.shape).to(mine.device), tensor)


def divide_like(mine: Tensor, tensor: Tensor) -> Tensor:
    """Combine this process's rows to a tensor divided like another one, if that is divided."""
    if not is_divided(tensor):
        return mine
    from torch.distributed.tensor import DTensor

    how: dict[str, Any] = {"run_check": False, "shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(mine, tensor.device_mesh, tensor.placements, **how)  # type: ignore[attr-defined]


def whole(saved: Tensor | Parted) -> Tensor:
    """The whole saved tensor, in this process alone."""
    return saved.whole() if isinstance(saved, Parted) else saved


def map_parted(value: Any, change: Callable[[Parted], Any]) -> Any:
    """The same nest of dicts and lists with every parted tensor changed."""
    if isinstance(value, Parted):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_parted(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_parted(item, change) for item in value)
    return value
