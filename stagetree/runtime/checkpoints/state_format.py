"""A state as one safetensors image: tensors by their paths, everything else as JSON in the header.

NumPy arrays and bytes are stored like tensors. NumPy scalars keep their type.

A tensor divided among ranks is stored in the image of each rank, with its place in the whole. The leader's image also
has the tree and all undivided values.

Nothing is ever unpickled. An image is written to an anonymous file, which can be passed to another process; each tensor
is copied once. `image_layout` decides where tensors lie.
"""

from __future__ import annotations

import json
import mmap
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stagetree.runtime.checkpoints import image_layout
from stagetree.runtime.checkpoints.image_layout import NAMES, PlacedTensor, tensors_of
from stagetree.runtime.checkpoints.safetensors_header import LENGTH
from stagetree.system.files import anonymous_file
from stagetree.trainer.divided_tensors import Parted, Unsavable, is_divided, local, place_of

TENSOR, ARRAY, BYTES, PAIRS, TUPLE, PARTED = "$tensor", "$array", "$bytes", "$pairs", "$tuple", "$parted"
NUMBER = "$number"
SAME_AS_FIRST = {"$as": "the first"}
"""Marks a value in the state of a rank that equals the first rank's."""

SUGGESTIONS = (
    (set | frozenset | deque | range, "list({})"),
    (np.generic, "{}.item()"),
    (complex, "[{0}.real, {0}.imag]"),
    (Enum, "{}.value"),
    (torch.Generator, "{}.get_state()"),
    (np.random.Generator, "{}.bit_generator.state"),
    (Path | Decimal | Fraction | torch.dtype | torch.device | date | time, "str({})"),
)
"""What to suggest for a value that cannot be saved, by type. `{}` stands for its name."""

PLAIN = frozenset((int, float, str, bool, type(None)))
"""Types that JSON stores as they are."""

Image = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True, slots=True)
class Layout:
    """An image before it is written: its header and its placed tensors."""

    header: bytes
    tensors: list[PlacedTensor]

    @property
    def size(self) -> int:
        return len(self.header) + max((each.end for each in self.tensors), default=0)

    @classmethod
    def plan(cls, state: Any) -> Layout:
        """The layout of a nested state. Raises `Unsavable`."""
        tree, tensors = _flatten_state(state)
        return cls._place({"tree": json.dumps(tree)}, tensors)

    @classmethod
    def build_part(cls, state: Any) -> Layout | None:
        """The layout of a rank's parts of divided tensors, for ranks that do not lead; None if there are none."""
        divided = {name: each for name, each in _flatten_state(state)[1].items() if is_divided(each)}
        return cls._place({}, divided) if divided else None

    @classmethod
    def _place(cls, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> Layout:
        places = {name: place_of(each, name) for name, each in tensors.items() if is_divided(each)}
        metadata = {**metadata, "parted": json.dumps(places)} if places else metadata
        placed = image_layout.place({name: local(tensor) for name, tensor in tensors.items()})
        return cls(image_layout.header(metadata, placed), placed)

    def fill(self, area: mmap.mmap) -> None:
        """Write the image to the beginning of `area`; copies are complete on return."""
        area[: len(self.header)] = self.header
        image_layout.fill(area, len(self.header), self.tensors)

    def write(self) -> tuple[int, int]:
        """Write the image to an anonymous file: its descriptor and size. Raises OSError."""
        fd = anonymous_file(self.size)
        try:
            self.fill(mmap.mmap(fd, self.size))
        except BaseException:
            os.close(fd)
            raise
        return fd, self.size


def write(state: Any) -> tuple[int, int]:
    """Write a nested state to an anonymous file: its descriptor and size. Raises `Unsavable`, OSError."""
    return Layout.plan(state).write()


def unpack(*images: Image) -> Any:
    """The state in an image, merged with the images of other ranks; divided tensors become `Parted`.

    Tensors lie in the images if these are writable, so the images must not change.
    """
    tree, tensors, parts = None, dict[str, Any](), dict[str, list[tuple[Any, torch.Tensor]]]()
    for image in images:
        area = memoryview(image)
        area = image_layout.aligned_copy(area) if area.readonly else area
        begin = LENGTH + int.from_bytes(area[:LENGTH], "little")
        header = json.loads(bytes(area[LENGTH:begin]))
        metadata = header.pop("__metadata__")
        tree = json.loads(metadata["tree"]) if "tree" in metadata else tree
        stored, places = tensors_of(area, begin, header), json.loads(metadata.get("parted", "{}"))
        for name, place in places.items():
            parts.setdefault(name, []).append((place["begin"], stored[name]))
            tensors[name] = Parted(place["shape"], parts[name])
        tensors |= {name: tensor for name, tensor in stored.items() if name not in places}
    return _rebuild(tree, tensors)


def read(*fds: int) -> Any:
    """The state in files, as in `unpack`. Changing its tensors does not change the files."""
    return unpack(*(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) for fd in fds))


# ------------------------------------------------------------------------------------------------------------- writing


def _flatten_state(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON tree of a state, and its tensors by name. Raises `Unsavable`."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        return _flatten(state, (), tensors), tensors
    except RecursionError:
        raise Unsavable("holds itself, or is nested too deeply") from None


def _flatten(value: Any, path: tuple[Any, ...], tensors: dict[str, torch.Tensor]) -> Any:
    """The JSON tree of a value; its tensors are added to `tensors` by the names used in the tree."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        name = _name(path, tensors)
        if value.layout != torch.strided or value.dtype not in NAMES:
            raise Unsavable(f"is a tensor of {value.dtype} and {value.layout}, which cannot be saved", path)
        tensors[name] = value.detach()
        return {PARTED if is_divided(value) else TENSOR: name}
    if isinstance(value, np.ndarray):
        return {ARRAY: _flatten(_tensor_of(value, path), path, tensors)[TENSOR]}
    if isinstance(value, np.number | np.bool_ | np.datetime64):
        return {NUMBER: [_dtype_text(value.dtype), value.tobytes().hex()]}
    if isinstance(value, bytes | bytearray):
        content = np.frombuffer(value, dtype=np.uint8)
        return {BYTES: _flatten(_tensor_of(content, path), path, tensors)[TENSOR]}
    if isinstance(value, dict):
        return {PAIRS: [[_key(k, path), _flatten(v, (*path, k), tensors)] for k, v in value.items()]}
    if type(value) is list and PLAIN.issuperset(map(type, value)):  # a fast path for Python's generator
        return value
    if isinstance(value, list | tuple):
        items = [_flatten(item, (*path, number), tensors) for number, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unsavable(f"is a {type_name(value)}; {suggestion(value, path)}", path)


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """The character of a type, which distinguishes `longlong` from `int64`; the long form for units of time."""
    return dtype.char if np.dtype(dtype.char) == dtype else dtype.str


def _name(path: tuple[Any, ...], names: Mapping[str, Any]) -> str:
    """The name that other programs see in the file: `trainer.model.0.weight`."""
    name = ".".join(map(str, path or ("state",))).encode("utf-8", "backslashreplace").decode()
    return name if name not in names else f"{name}#{len(names)}"


def _tensor_of(array: np.ndarray[Any, Any], path: tuple[Any, ...]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise Unsavable(f"is an array of {array.dtype}, which cannot be saved", path) from None


def _key(key: Any, path: tuple[Any, ...]) -> Any:
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise Unsavable(f"has a key that is a {type_name(key)}; keys are text or numbers", path)


def type_name(value: Any) -> str:
    """The name of a value's type: `numpy.float32`, or `set` for a builtin."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def suggestion(value: Any, path: tuple[Any, ...]) -> str:
    """A suggestion for a value that cannot be saved: "write list(seen)"."""
    name = str(path[-1]) if path and str(path[-1]).isidentifier() else "it"
    if callable(getattr(value, "state_dict", None)):
        return f"write {name}.state_dict()"
    form = next((form for kinds, form in SUGGESTIONS if isinstance(value, kinds)), None)
    if form is None:
        return "a state holds tensors, arrays, bytes, text and numbers, and lists, tuples and dicts of them"
    return f"write {form.format(name)}"


# ------------------------------------------------------------------------------------------------------------- reading


def _rebuild(tree: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(tree, list):  # the fast path again
        return tree if PLAIN.issuperset(map(type, tree)) else [_rebuild(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if TENSOR in tree or PARTED in tree:
        return tensors[tree.get(TENSOR) or tree[PARTED]]
    if NUMBER in tree:
        dtype, content = tree[NUMBER]
        return np.frombuffer(bytes.fromhex(content), dtype=dtype)[0]
    if ARRAY in tree:
        return tensors[tree[ARRAY]].numpy()
    if BYTES in tree:
        return tensors[tree[BYTES]].numpy().tobytes()
    if TUPLE in tree:
        return tuple(_rebuild(item, tensors) for item in tree[TUPLE])
    return {key: _rebuild(value, tensors) for key, value in tree[PAIRS]}


# ------------------------------------------------------------------------------------------ states of several ranks


def less(value: Any, first: Any) -> Any:
    """The state without values that equal another state's at the same place, so that they are stored once."""
    if isinstance(value, dict) and isinstance(first, dict) and value.keys() == first.keys():
        return {name: less(each, first[name]) for name, each in value.items()}
    if isinstance(value, list | tuple) and type(value) is type(first) and len(value) == len(first):
        return type(value)(less(*each) for each in zip(value, first, strict=True))
    return SAME_AS_FIRST if _are_equal(value, first) else value


def more(value: Any, first: Any) -> Any:
    """The inverse of `less`."""
    if isinstance(value, dict) and value == SAME_AS_FIRST:
        return first
    if isinstance(value, dict) and isinstance(first, dict) and value.keys() == first.keys():
        return {name: more(each, first[name]) for name, each in value.items()}
    if isinstance(value, list | tuple) and type(value) is type(first) and len(value) == len(first):
        return type(value)(more(*each) for each in zip(value, first, strict=True))
    return value


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        return is_alike and _bytes(one).equal(_bytes(other))
    if isinstance(one, np.ndarray | np.generic | torch.Tensor | float):
        return False
    return type(one) is type(other) and bool(one == other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
