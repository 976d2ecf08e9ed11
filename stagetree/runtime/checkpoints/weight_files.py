"""Weight files: safetensors, files of `torch.save`, and checkpoints.

Recognizing them and extracting the model of a checkpoint needs no torch: a checkpoint is a safetensors file itself
(`state_format`), whose tensors are copied as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal

from stagetree.runtime.checkpoints import dcp
from stagetree.runtime.checkpoints.safetensors_header import (
    LENGTH,
    MOST_HEADER,
    Entry,
    Image,
    entries_of,
    head_of,
    header_of,
    place_rank,
)

WRAPPED = ("state_dict", "model", "model_state_dict")
"""Keys under which scripts store a state dict among other things."""

Block = tuple[list[int], list[int], memoryview]
"""A part of a tensor: its offset in the whole, its shape, and its bytes."""


def export_weights(image: Image) -> bytes:
    """The model of a checkpoint, as `evaluate` measured it, as a safetensors file.

    Names are those of the model's `state_dict`, so that a plain module can load it. For a `TorchTrainer` with
    `average_decay` these are the averages. For a state without a `model`, all tensors are exported by their paths.

    Raises:
        ValueError: if it is no checkpoint, or holds no tensors.
    """
    return b"".join(weight_parts(image))


def weight_parts(image: Image, mark: str = "") -> list[memoryview]:
    """As `export_weights`, in parts that refer to the image, so that large models are not held twice.

    mark: why the weights may be inexact, for the file's metadata.
    """
    header, begin = header_of(image)
    trainer = _trainer(header)
    parts = _model_parts(trainer)
    model, average = (dict(_tensors(parts.get(part), ())) for part in ("model", "average"))
    names = model | {name: average[name] for name in model.keys() & average.keys()} or dict(_tensors(trainer, ()))
    if not names:
        raise ValueError("the checkpoint holds no tensors, only other values")
    return _file_parts({name: header[stored] for name, stored in names.items()}, memoryview(image)[begin:], mark)


def find_model_copies(image: Image) -> list[str]:
    """The parts of a checkpoint that hold tensors with the model's names and shapes, such as a custom average."""
    header, like = header_of(image)[0], list[str]()
    parts = _model_parts(_trainer(header))
    model = {name: header[stored]["shape"] for name, stored in _tensors(parts.get("model"), ())}
    for part in parts.keys() - {"model", "average", "optimizer"}:
        shapes = {name.removeprefix("module."): header[stored]["shape"] for name, stored in _tensors(parts[part], ())}
        if 2 * sum(shapes.get(name) == shape for name, shape in model.items()) > len(model):  # most of them match
            like.append(str(part))
    return sorted(like)


def is_divided(image: Image) -> bool:
    """Whether a checkpoint is one rank's part, to be `join_parts` with the other ranks'."""
    try:
        return "parted" in header_of(image)[0].get("__metadata__", {})
    except ValueError:
        return False


def join_parts(images: Sequence[Image]) -> Iterator[memoryview]:
    """One checkpoint of the images of several ranks, in parts, as a single process would have saved it.

    Raises ValueError if it is no checkpoint, or if images are missing.
    """
    heads = [header_of(image) for image in images]
    tree = heads[0][0].get("__metadata__", {}).get("tree")
    if tree is None:
        raise ValueError("that is no checkpoint")
    whole, blocks = dict[str, tuple[str, list[int]]](), dict[str, list[Block]]()
    for image, (header, begin) in zip(images, heads, strict=True):
        places = json.loads(header.get("__metadata__", {}).get("parted", "{}"))
        for name, entry in entries_of(header).items():
            place = places.get(name, {"shape": entry["shape"], "begin": [0] * len(entry["shape"])})
            first, last = entry["data_offsets"]
            block = memoryview(image)[begin + first : begin + last]
            whole[name] = (entry["dtype"], place["shape"])
            blocks.setdefault(name, []).append((place["begin"], entry["shape"], block))
    sizes = {name: prod(shape) * _bytes_of_one(blocks[name]) for name, (_, shape) in whole.items()}
    order = [name for name in _tensor_names(json.loads(tree)) if name in whole]
    names = sorted(order, key=lambda name: (place_rank(sizes[name]), -_bytes_of_one(blocks[name])))
    entries: dict[str, Any] = {"__metadata__": {"tree": json.dumps(_mark_whole(json.loads(tree)))}}
    end = 0
    for name in names:
        dtype, shape = whole[name]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    yield head_of(entries)
    for name in names:
        yield from _ordered_blocks(whole[name][1], blocks[name])


def _bytes_of_one(blocks: Sequence[Block]) -> int:
    """The element size; 0 for an empty tensor."""
    return max(len(block) // prod(shape) if prod(shape) else 0 for _, shape, block in blocks)


def _ordered_blocks(shape: Sequence[int], blocks: Sequence[Block]) -> Iterator[memoryview]:
    """The bytes of a tensor whose blocks divide it along one dimension."""
    ordered = sorted(blocks, key=lambda each: each[0])
    if sum(prod(each) for _, each, _ in blocks) != prod(shape):
        raise ValueError("a part of the checkpoint is missing")
    divided = next((at for at, length in enumerate(shape) if any(each[at] != length for _, each, _ in blocks)), 0)
    runs = prod(shape[:divided])
    for run in range(runs):
        for _, _, block in ordered:
            length = len(block) // runs
            yield block[run * length : (run + 1) * length]


TENSORS = frozenset({"$tensor", "$parted", "$array", "$bytes"})


def _tensor_names(tree: Any) -> Iterator[str]:
    """The tensors of a checkpoint's tree, in order."""
    if isinstance(tree, list):
        for item in tree:
            yield from _tensor_names(item)
    elif isinstance(tree, dict):
        for kind, value in tree.items():
            yield from [value] if kind in TENSORS and isinstance(value, str) else _tensor_names(value)


def _mark_whole(tree: Any) -> Any:
    """The tree of a checkpoint with all tensors whole."""
    if isinstance(tree, list):
        return [_mark_whole(item) for item in tree]
    if isinstance(tree, dict):
        return {"$tensor" if kind == "$parted" else kind: _mark_whole(value) for kind, value in tree.items()}
    return tree


def kind_of(file: BinaryIO) -> Literal["checkpoint", "dcp", "safetensors", "torch"] | None:
    """The kind of an open weight file, by its beginning; None if unknown. Needs no torch."""
    first = file.read(LENGTH)
    if first[:4] == b"PK\x03\x04" or (first[:1] == b"\x80" and first[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return "torch"
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH or not 2 <= length <= MOST_HEADER:
        return None
    try:
        header = json.loads(file.read(length))
    except ValueError:
        return None
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if metadata is None:
        return None
    return "dcp" if dcp.KIND in metadata else "checkpoint" if "tree" in metadata else "safetensors"


def load_weights(path: str | Path) -> dict[str, Any]:
    """The tensors of a safetensors file, of a state dict of `torch.save`, or of a checkpoint, by name. Needs torch.

    For a checkpoint, this is the model as in `export_weights`. For a dict of `torch.save` without tensors, its
    `state_dict`, `model` or `model_state_dict` is used. For a folder of `torch.distributed.checkpoint`, the tensors
    below one of these names, or else all.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is none of these.
    """
    import torch

    from stagetree.runtime.checkpoints.image_layout import tensors_of

    if Path(path).is_dir():
        image = bytearray(b"".join(dcp.PackedFolder.from_folder(Path(path)).parts()))
        return _model_of(dcp.tensors_in(memoryview(image), *header_of(memoryview(image))))
    with Path(path).open("rb") as file:
        kind = kind_of(file)
        file.seek(0)
        if kind == "torch":
            return _state_dict(torch.load(file, map_location="cpu", weights_only=True))
        if kind is None:
            raise ValueError("that is no safetensors file, no file of torch.save, and no checkpoint")
        image = bytearray(file.read())
    image = bytearray(export_weights(memoryview(image))) if kind == "checkpoint" else image
    header, begin = header_of(memoryview(image))
    if kind == "dcp":
        return _model_of(dcp.tensors_in(memoryview(image), header, begin))
    return tensors_of(image, begin, entries_of(header))


def _model_of(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors below the model's key, with its own names, if there is one; else all."""
    for prefix in (f"{wrapper}." for wrapper in WRAPPED):
        if own := {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}:
            return own
    return tensors


def _state_dict(saved: Any) -> dict[str, Any]:
    """The mapping from names to tensors in an object of `torch.save`."""
    import torch

    for state in (saved, *(saved.get(name) for name in WRAPPED if isinstance(saved, Mapping))):
        if isinstance(state, Mapping) and any(isinstance(each, torch.Tensor) for each in state.values()):
            return dict(state)
    raise ValueError(f"the file of torch.save holds no state dict, neither itself nor as {', '.join(WRAPPED)}")


def _trainer(header: Mapping[str, Any]) -> Any:
    """The tree of the trainer's `state_dict`. Raises ValueError."""
    tree = header.get("__metadata__", {}).get("tree")
    if tree is None:
        raise ValueError("that is no checkpoint")
    return _items(json.loads(tree)).get("trainer")


def _model_parts(trainer: Any) -> dict[Any, Any]:
    """The part of the state that contains the model: a script's is its `state`, beside its streams."""
    parts = _items(trainer)
    return _model_parts(parts["state"]) if "model" not in parts and "state" in parts else parts


def _items(tree: Any) -> dict[Any, Any]:
    """The items of a dict in a checkpoint's tree."""
    return dict(tree["$pairs"]) if isinstance(tree, dict) and "$pairs" in tree else {}


def _tensors(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The dotted path of each tensor, and its stored name."""
    if isinstance(tree, dict):
        for kind in ("$tensor", "$array"):
            if kind in tree:
                yield ".".join(path), tree[kind]
        tree = tree.get("$tuple", _items(tree))
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _tensors(value, (*path, str(key)))


def _file_parts(entries: Mapping[str, Entry], area: memoryview, mark: str) -> list[memoryview]:
    """The parts of a safetensors file with these tensors of `area`."""
    metadata = {"format": "pt"} | ({"exactness": mark} if mark else {})  # other readers expect `format`
    header: dict[str, Any] = {"__metadata__": metadata}
    parts, end = {name: area[slice(*entry["data_offsets"])] for name, entry in entries.items()}, 0
    names = sorted(parts, key=lambda name: -_bytes_of_one([([], entries[name]["shape"], parts[name])]))  # for alignment
    for name in names:
        begin, end = end, end + len(parts[name])
        header[name] = {**entries[name], "data_offsets": [begin, end]}
    return [head_of(header), *(parts[name] for name in names)]


def load_state(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint file, or of one that `stagetree weights` wrote. Needs torch.

    Returns:
        For a checkpoint, the trainer's `state_dict`; for weights, tensors by name.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no safetensors file, or is cut off.
    """
    from stagetree.runtime.checkpoints import state_format
    from stagetree.runtime.checkpoints.image_layout import aligned_copy, tensors_of

    try:
        header, begin = header_of(image := Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if begin + max((entry["data_offsets"][1] for entry in entries_of(header).values()), default=0) > len(image):
        raise ValueError(f"{path}: the file is cut off")
    if "tree" in header.get("__metadata__", {}):
        state: dict[str, Any] = state_format.unpack(image)["trainer"]
        return state
    return tensors_of(aligned_copy(image[begin:]), 0, entries_of(header))
