"""A checkpoint as bytes: tensors in safetensors, everything else as JSON in its header. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save

TENSOR, PAIRS, TUPLE = "$tensor", "$pairs", "$tuple"


class Unsavable(TypeError):
    """A state holds something that is neither a tensor nor a JSON value; the message says where."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A nested state, apart from the model it was taken of: its tensors by name, and a JSON tree that names them."""

    tree: Any
    tensors: dict[str, torch.Tensor]


def snapshot(state: Any) -> Snapshot:
    """A copy of a nested state, in main memory, that further training does not change. Raises `Unsavable`."""
    tensors: dict[str, torch.Tensor] = {}
    return Snapshot(_flatten(state, "state", tensors), tensors)


def pack(taken: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    return save(taken.tensors, metadata={"tree": json.dumps(taken.tree)})


def unpack(data: bytes) -> Any:
    """The state in bytes that `pack` made."""
    length = int.from_bytes(data[:8], "little")
    tree = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["tree"])
    return _rebuild(tree, load_tensors(data))


def _flatten(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(value, dict):
        return {PAIRS: [[_scalar(k, path), _flatten(v, f"{path}[{k!r}]", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        items = [_flatten(item, f"{path}[{number}]", tensors) for number, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    return _scalar(value, path)


def _scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unsavable(f"{path} is a {type(value).__name__}; state_dict must hold tensors and JSON values only")


def _rebuild(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_rebuild(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if TENSOR in tree:
        return tensors[tree[TENSOR]]
    if TUPLE in tree:
        return tuple(_rebuild(item, tensors) for item in tree[TUPLE])
    return {key: _rebuild(value, tensors) for key, value in tree[PAIRS]}
