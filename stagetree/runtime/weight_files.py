"""Files of weights: safetensors, what `torch.save` wrote, and checkpoints.

Telling them apart, and taking the model out of a checkpoint, needs no torch: a checkpoint is a safetensors file itself
(`stagetree.runtime.state_format`), so tensors are moved as the bytes they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal

from stagetree.runtime import dcp
from stagetree.runtime.safetensors_header import (
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
"""The names under which scripts keep a state dict among other things."""

Block = tuple[list[int], list[int], memoryview]
"""Where the part of a tensor begins in the whole, its shape, and its numbers."""


def export_weights(image: Image) -> bytes:
    """The model of a checkpoint, as `evaluate` measured it, as a safetensors file.

    Names are those of the model's `state_dict`, so a plain module of the same shape loads it. Of a `TorchTrainer` with
    `average_decay` the averages are taken. A trainer whose state has no `model` gives all the tensors of its state, by
    the names of their places.

    Raises:
        ValueError: if it is no checkpoint, or holds no tensors.
    """
    return b"".join(weight_parts(image))


def weight_parts(image: Image, **metadata: str) -> list[memoryview]:
    """As `export_weights`, in parts that lie where they were: for models that memory should not hold twice."""
    header, begin = header_of(image)
    names = _names(header)
    if not names:
        raise ValueError("the checkpoint holds no tensors, only other values")
    return _written({name: header[stored] for name, stored in names.items()}, memoryview(image)[begin:], metadata)


def like_the_model(image: Image) -> list[str]:
    """The parts of a checkpoint that hold tensors of its model's names and shapes, such as an average of one's own."""
    header, like = header_of(image)[0], list[str]()
    parts = _with_model(_trainer(header))
    model = {name: header[stored]["shape"] for name, stored in _tensors(parts.get("model"), ())}
    for part in parts.keys() - {"model", "average", "optimizer"}:
        shapes = {name.removeprefix("module."): header[stored]["shape"] for name, stored in _tensors(parts[part], ())}
        if 2 * sum(shapes.get(name) == shape for name, shape in model.items()) > len(model):  # most have one
            like.append(str(part))
    return sorted(like)


def is_divided(image: Image) -> bool:
    """Whether a checkpoint is the part of one rank, which must be `joined` with the others, if there are any."""
    try:
        return "parted" in header_of(image)[0].get("__metadata__", {})
    except ValueError:
        return False


def joined(images: Sequence[Image]) -> Iterator[memoryview]:
    """One checkpoint of the images of several ranks, as a process alone would have saved it, in parts.

    Raises ValueError if that is no checkpoint, or one that other images belong to.
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
    order = [name for name in _named_in(json.loads(tree)) if name in whole]
    names = sorted(order, key=lambda name: (place_rank(sizes[name]), -_bytes_of_one(blocks[name])))
    entries: dict[str, Any] = {"__metadata__": {"tree": json.dumps(_undivided(json.loads(tree)))}}
    end = 0
    for name in names:
        dtype, shape = whole[name]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    yield head_of(entries)
    for name in names:
        yield from _in_order(whole[name][1], blocks[name])


def _bytes_of_one(blocks: Sequence[Block]) -> int:
    """The size of a number; 0 where there is none."""
    return max(len(block) // prod(shape) if prod(shape) else 0 for _, shape, block in blocks)


def _in_order(shape: Sequence[int], blocks: Sequence[Block]) -> Iterator[memoryview]:
    """The numbers of a tensor, of which each block has all in every dimension but one."""
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


def _named_in(tree: Any) -> Iterator[str]:
    """The tensors of a checkpoint's tree, in its order."""
    if isinstance(tree, list):
        for item in tree:
            yield from _named_in(item)
    elif isinstance(tree, dict):
        for kind, value in tree.items():
            yield from [value] if kind in TENSORS and isinstance(value, str) else _named_in(value)


def _undivided(tree: Any) -> Any:
    """The tree of a checkpoint in which every tensor is whole."""
    if isinstance(tree, list):
        return [_undivided(item) for item in tree]
    if isinstance(tree, dict):
        return {"$tensor" if kind == "$parted" else kind: _undivided(value) for kind, value in tree.items()}
    return tree


def kind_of(file: BinaryIO) -> Literal["checkpoint", "dcp", "safetensors", "torch"] | None:
    """What an open file of weights is, by its beginning; None for something else. Needs no torch."""
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
    """Tensor by name, of a safetensors file, a state dict that `torch.save` wrote, or a checkpoint. Needs torch.

    Of a checkpoint, the model as `export_weights` has it. Of a dict that `torch.save` wrote, `state_dict`, `model` or
    `model_state_dict` in it is taken where it holds no tensors itself. Of a folder that `torch.distributed.checkpoint`
    wrote, the tensors below one of these names, if there are any, or else all.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is none of these.
    """
    import torch

    from stagetree.runtime.image_layout import tensors_of

    if Path(path).is_dir():
        image = bytearray(b"".join(dcp.PackedFolder.of(Path(path)).parts()))
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
    """The model's own, by its own names, where a state names it; else all."""
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


def _names(header: Mapping[str, Any]) -> dict[str, str]:
    """The names under which the tensors of a checkpoint are stored, by the model's own names for them."""
    trainer = _trainer(header)
    parts = _with_model(trainer)
    model, average = (dict(_tensors(parts.get(part), ())) for part in ("model", "average"))
    return model | {name: average[name] for name in model.keys() & average.keys()} or dict(_tensors(trainer, ()))


def _trainer(header: Mapping[str, Any]) -> Any:
    """What the trainer's `state_dict` returned, as a checkpoint's tree writes it. Raises ValueError."""
    tree = header.get("__metadata__", {}).get("tree")
    if tree is None:
        raise ValueError("that is no checkpoint")
    return _items(json.loads(tree)).get("trainer")


def _with_model(trainer: Any) -> dict[Any, Any]:
    """The parts of a state among which the model is: a script's are its `state`, beside the places of its streams."""
    parts = _items(trainer)
    return _with_model(parts["state"]) if "model" not in parts and "state" in parts else parts


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


def _written(entries: Mapping[str, Entry], area: memoryview, metadata: Mapping[str, str]) -> list[memoryview]:
    """The parts of a safetensors file of these tensors, which lie in `area`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}  # as others expect of PyTorch's names
    parts, end = {name: area[slice(*entry["data_offsets"])] for name, entry in entries.items()}, 0
    names = sorted(parts, key=lambda name: -_bytes_of_one([([], entries[name]["shape"], parts[name])]))  # as above
    for name in names:
        begin, end = end, end + len(parts[name])
        header[name] = {**entries[name], "data_offsets": [begin, end]}
    return [head_of(header), *(parts[name] for name in names)]


__all__ = ["export_weights", "load_state", "load_weights", "weight_parts"]


def load_state(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint's file, or of one that `stagetree weights` wrote. Needs torch.

    Returns:
        Of a checkpoint, what the trainer's `state_dict` returned; of weights, tensor by name.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no safetensors file, or only the beginning of one.
    """
    from stagetree.runtime import state_format
    from stagetree.runtime.image_layout import aligned_copy, tensors_of

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
