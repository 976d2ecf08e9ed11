"""The weights in a checkpoint, for any program: a safetensors file with the model's own names in it.

Needs no torch: a checkpoint is a safetensors file itself (`stagetree.runtime.state_format`), so tensors are moved as
the bytes they are.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LENGTH = 8
"""A safetensors file begins with the length of its header, in so many bytes."""

Entry = dict[str, Any]
Image = bytes | memoryview | mmap.mmap


def export_weights(image: Image) -> bytes:
    """The model of a checkpoint, as `evaluate` measured it, as a safetensors file.

    Names are those of the model's `state_dict`, so a plain module of the same shape loads it. Of a `TorchTrainer` with
    `average_decay` the averages are taken. A trainer whose state has no `model` gives all the tensors of its state, by
    the names of their places.

    Raises:
        ValueError: if that is no checkpoint, or holds no tensors.
    """
    return b"".join(weight_parts(image))


def weight_parts(image: Image) -> list[memoryview]:
    """As `export_weights`, in parts that lie where they were: for models that memory should not hold twice."""
    header, begin = _header(image)
    names = _names(header)
    if not names:
        raise ValueError("the checkpoint holds no tensors")
    return _written({name: header[stored] for name, stored in names.items()}, memoryview(image)[begin:])


def load_state(path: str | Path) -> dict[str, Any]:
    """What is in a checkpoint's file, or in one that `stagetree weights` wrote. Needs torch.

    Returns:
        Of a checkpoint, what the trainer's `state_dict` returned; of weights, tensor by name.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no safetensors file, or only the beginning of one.
    """
    from stagetree.runtime import state_format

    image = Path(path).read_bytes()
    try:
        header, begin = _header(image)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if begin + max((entry["data_offsets"][1] for entry in _entries(header).values()), default=0) > len(image):
        raise ValueError(f"{path}: the file is cut off")
    if "tree" in header.get("__metadata__", {}):
        state: dict[str, Any] = state_format.unpack(image)["trainer"]
        return state
    return state_format.tensors_of(bytearray(image), begin, _entries(header))


def _header(image: Image) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    begin = LENGTH + int.from_bytes(image[:LENGTH], "little")
    try:
        header = json.loads(bytes(image[LENGTH:begin]))
    except ValueError:
        header = None
    if begin > len(image) or not isinstance(header, dict):
        raise ValueError("that is no safetensors file")
    return header, begin


def _entries(header: Mapping[str, Any]) -> dict[str, Entry]:
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _names(header: Mapping[str, Any]) -> dict[str, str]:
    """The names under which the tensors of a checkpoint are stored, by the model's own names for them."""
    metadata = header.get("__metadata__", {})
    if "tree" not in metadata:
        raise ValueError("that is no checkpoint")
    trainer = _items(json.loads(metadata["tree"])).get("trainer")
    parts = _items(trainer)
    model = dict(_tensors(parts.get("model"), ()))
    average = dict(_tensors(parts.get("average"), ()))
    if model:
        return model | {name: stored for name, stored in average.items() if name in model}
    return dict(_tensors(trainer, ()))


def _items(tree: Any) -> dict[Any, Any]:
    """The items of a dict, as a checkpoint's tree writes one."""
    return dict(tree["$pairs"]) if isinstance(tree, dict) and "$pairs" in tree else {}


def _tensors(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The dotted place of each tensor, and the name it is stored under."""
    if isinstance(tree, dict):
        for kind in ("$tensor", "$array"):
            if kind in tree:
                yield ".".join(path), tree[kind]
        tree = tree.get("$tuple", _items(tree))
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _tensors(value, (*path, str(key)))


def _written(entries: Mapping[str, Entry], area: memoryview) -> list[memoryview]:
    """The parts of a safetensors file of these tensors, which lie in `area`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # as other tools expect of PyTorch's names
    pieces, end = list[memoryview](), 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):  # largest elements first
        first, last = entry["data_offsets"]
        pieces.append(area[first:last])
        begin, end = end, end + last - first
        header[name] = {**entry, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    return [memoryview(len(text).to_bytes(LENGTH, "little") + text), *pieces]
