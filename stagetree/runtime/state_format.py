"""A state as one safetensors image: tensors by the names of their places, everything else as JSON in its header.

Arrays of NumPy and bytes lie beside the tensors, as tensors do.

Of a tensor that is divided among ranks, the image of each has its rows, and says where they lie in the whole: that of
the leader has the tree besides, and everything that is not divided.

Nothing is ever unpickled. An image is written into a file without a name, which can be handed to another process: each
tensor is copied once, from where it is; from a GPU on a stream of its own.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stagetree.runtime.wire import anonymous_file
from stagetree.trainer.parted import Parted, is_divided, local, place_of
from stagetree.trainer.parted import Unsavable as Unsavable

TENSOR, ARRAY, BYTES, PAIRS, TUPLE, PARTED = "$tensor", "$array", "$bytes", "$pairs", "$tuple", "$parted"
DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SAME = {"$as": "the first"}
"""In the state of one of several ranks: what is there in that of the first."""

PLAIN = frozenset((int, float, str, bool, type(None)))
"""What is written as it is."""

LENGTH = 8
"""An image begins with the length of its header, in so many bytes; everything in it is aligned to as many."""

Image = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True, slots=True)
class Layout:
    """An image before it is written: what it begins with, the tensors behind that, and how many bytes it has."""

    header: bytes
    tensors: list[torch.Tensor]
    size: int

    @classmethod
    def of(cls, state: Any) -> Layout:
        """Where everything of a nested state is to lie. Raises `Unsavable`."""
        tree, tensors = _flattened(state)
        return cls._written({"tree": json.dumps(tree)}, tensors)

    @classmethod
    def of_part(cls, state: Any) -> Layout | None:
        """The same of this rank's parts of divided tensors, for ranks that do not lead; None where none is divided."""
        divided = {name: each for name, each in _flattened(state)[1].items() if is_divided(each)}
        return cls._written({}, divided) if divided else None

    @classmethod
    def _written(cls, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> Layout:
        placed = sorted(tensors.items(), key=lambda each: -each[1].element_size())  # so that each is aligned
        places = {name: place_of(each, name) for name, each in placed if is_divided(each)}
        metadata = {**metadata, "parted": json.dumps(places)} if places else metadata
        here = [(name, local(tensor)) for name, tensor in placed]
        header, size = _header(metadata, here)
        return cls(header, [tensor for _, tensor in here], size)

    def fill(self, area: mmap.mmap) -> None:
        """Write it to the beginning of `area`; all of it is there on return."""
        area[: len(self.header)] = self.header
        with _side_stream(self.tensors):
            offset = len(self.header)
            for tensor in self.tensors:
                if tensor.numel():
                    there = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
                    there.view(tensor.shape).copy_(tensor, non_blocking=True)
                    offset += tensor.numel() * tensor.element_size()

    def write(self) -> tuple[int, int]:
        """A file without a name that holds it: its descriptor and size. Raises OSError."""
        fd = anonymous_file(self.size)
        try:
            self.fill(mmap.mmap(fd, self.size))
        except BaseException:
            os.close(fd)
            raise
        return fd, self.size


def write(state: Any) -> tuple[int, int]:
    """A nested state as an image in a file without a name: its descriptor and size. Raises `Unsavable`, OSError."""
    return Layout.of(state).write()


def unpack(*images: Image) -> Any:
    """The state in an image, and in the images of other ranks if there are any; a divided tensor is `Parted` in it.

    Its tensors lie in the images where these may be written to, so they must not change.
    """
    tree, tensors, parts = None, dict[str, Any](), dict[str, list[tuple[Any, torch.Tensor]]]()
    for image in images:
        area = bytearray(image) if isinstance(image, bytes) or memoryview(image).readonly else image
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


def tensors_of(
    area: bytearray | memoryview | mmap.mmap, begin: int, entries: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The tensors that a header's entries describe, where they lie: in `area`, from `begin` on."""
    return {name: _tensor(area, begin, entry) for name, entry in entries.items()}


def read(*fds: int) -> Any:
    """The state in files that hold its images, as of `unpack`. Changing its tensors does not change the files."""
    return unpack(*(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) for fd in fds))


# ------------------------------------------------------------------------------------------------------------- writing


def _flattened(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON tree of a state, and its tensors by the names that they have in it. Raises `Unsavable`."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        return _flatten(state, ("state",), tensors), tensors
    except RecursionError:
        raise Unsavable("the state holds itself, or is nested too deeply") from None


def _flatten(value: Any, path: tuple[Any, ...], tensors: dict[str, torch.Tensor]) -> Any:
    """The JSON tree of a value; its tensors go to `tensors`, under the names by which the tree knows them."""
    if isinstance(value, torch.Tensor):
        name = _name(path, tensors)
        tensors[name] = _savable(value, path)
        return {PARTED if is_divided(value) else TENSOR: name}
    if isinstance(value, np.ndarray):
        return {ARRAY: _flatten(_tensor_of(value, path), path, tensors)[TENSOR]}
    if isinstance(value, bytes | bytearray):
        content = np.frombuffer(value, dtype=np.uint8)
        return {BYTES: _flatten(_tensor_of(content, path), path, tensors)[TENSOR]}
    if isinstance(value, dict):
        return {PAIRS: [[_scalar(k, path), _flatten(v, (*path, k), tensors)] for k, v in value.items()]}
    if type(value) is list and PLAIN.issuperset(map(type, value)):  # such as the 625 numbers of Python's generator
        return value
    if isinstance(value, list | tuple):
        items = [_flatten(item, (*path, number), tensors) for number, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    return _scalar(value, path)


def _name(path: tuple[Any, ...], names: Mapping[str, Any]) -> str:
    """What any program that opens the file will see: `trainer.model.0.weight`."""
    parts = path[1:] or path
    name = ".".join(map(str, parts)).encode("utf-8", "backslashreplace").decode()
    return name if name not in names else f"{name}#{len(names)}"


def _tensor_of(array: np.ndarray[Any, Any], path: tuple[Any, ...]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise Unsavable(f"{_place(path)} is an array of {array.dtype}, which cannot be saved") from None


def _savable(tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.dtype not in NAMES:
        raise Unsavable(f"{_place(path)} is a tensor of {tensor.dtype} and {tensor.layout}, which cannot be saved")
    return tensor.detach()


def _scalar(value: Any, path: tuple[Any, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    subject = f"{_place(path)} is a {type(value).__name__}"
    raise Unsavable(f"{subject}; state_dict must hold tensors, arrays, bytes and JSON values only")


def _place(path: tuple[Any, ...]) -> str:
    return str(path[0]) + "".join(f"[{part!r}]" for part in path[1:])


def _header(metadata: dict[str, str], tensors: list[tuple[str, torch.Tensor]]) -> tuple[bytes, int]:
    """What comes before the tensors, and the size of the whole."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text, LENGTH + len(text) + end


@contextmanager
def _side_stream(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Copies from a GPU within the block go by a stream of their own, after what was computed until now.

    They are over after the block, also where it raises: who copies there next must not be overtaken.
    """
    with ExitStack() as entered:
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            entered.callback(stream.synchronize)
            entered.enter_context(torch.cuda.stream(stream))
        yield


# ------------------------------------------------------------------------------------------------------------- reading


def _tensor(area: bytearray | memoryview | mmap.mmap, begin: int, entry: dict[str, Any]) -> torch.Tensor:
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    first, end = entry["data_offsets"]
    if first == end:
        return torch.empty(shape, dtype=dtype)
    count = (end - first) // dtype.itemsize
    return torch.frombuffer(area, dtype=dtype, count=count, offset=begin + first).view(shape)


def _rebuild(tree: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(tree, list):  # also here: the 625 numbers
        return tree if PLAIN.issuperset(map(type, tree)) else [_rebuild(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if TENSOR in tree or PARTED in tree:
        return tensors[tree.get(TENSOR) or tree[PARTED]]
    if ARRAY in tree:
        return tensors[tree[ARRAY]].numpy()
    if BYTES in tree:
        return tensors[tree[BYTES]].numpy().tobytes()
    if TUPLE in tree:
        return tuple(_rebuild(item, tensors) for item in tree[TUPLE])
    return {key: _rebuild(value, tensors) for key, value in tree[PAIRS]}


# ---------------------------------------------------------------------------------------- states that are much the same


def less(value: Any, first: Any) -> Any:
    """A state without what another one has at the same place, to the bit: it need not be stored twice."""
    if isinstance(value, dict) and isinstance(first, dict) and value.keys() == first.keys():
        return {name: less(each, first[name]) for name, each in value.items()}
    if isinstance(value, list | tuple) and type(value) is type(first) and len(value) == len(first):
        return type(value)(less(*each) for each in zip(value, first, strict=True))
    return SAME if _are_equal(value, first) else value


def more(value: Any, first: Any) -> Any:
    """What `less` was given, from its answer."""
    if isinstance(value, dict) and value == SAME:
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
    return type(one) is type(other) and not isinstance(one, np.ndarray | torch.Tensor | float) and bool(one == other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
