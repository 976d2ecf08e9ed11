"""Where the tensors of a state lie in its image, a safetensors file: at multiples of 64 bytes.

torch aligns its own memory so, and kernels may add in another order for another alignment. Loaded tensors are therefore
aligned like computed ones. Safetensors allows no gaps: a large tensor of another size is followed by a tensor of
padding. Small ones of other sizes are packed, and copied when read.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stagetree.runtime.checkpoints.safetensors_header import ALIGNMENT, LARGE_PLACES, PADDING, head_of, place_rank

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


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and its offset behind the header."""

    name: str
    tensor: Tensor
    begin: int
    is_padding: bool = False

    @property
    def end(self) -> int:
        return self.begin + self.tensor.nbytes


def place(tensors: Mapping[str, Tensor]) -> list[PlacedTensor]:
    """The offset of each tensor, with padding. Each is aligned at least to its element size."""
    placed, end = list[PlacedTensor](), 0
    for name in sorted(tensors, key=lambda name: (place_rank(tensors[name].nbytes), -tensors[name].element_size())):
        placed.append(PlacedTensor(name, tensors[name], end))
        end = placed[-1].end
        if place_rank(tensors[name].nbytes) == LARGE_PLACES and end % ALIGNMENT:
            padding = torch.zeros(-end % ALIGNMENT, dtype=torch.uint8)
            placed.append(PlacedTensor(_padding_name(len(placed), tensors), padding, end, is_padding=True))
            end = placed[-1].end
    return placed


def _padding_name(number: int, names: Mapping[str, Any]) -> str:
    name = f"$padding.{number}"
    while name in names:
        name += "'"
    return name


def header(metadata: Mapping[str, str], placed: Sequence[PlacedTensor]) -> bytes:
    """The header of the image."""
    padding = [each.name for each in placed if each.is_padding]
    entries: dict[str, Any] = {"__metadata__": {**metadata, **({PADDING: json.dumps(padding)} if padding else {})}}
    for each in placed:
        dtype, shape = NAMES[each.tensor.dtype], list(each.tensor.shape)
        entries[each.name] = {"dtype": dtype, "shape": shape, "data_offsets": [each.begin, each.end]}
    return bytes(head_of(entries, ALIGNMENT))


def fill(area: mmap.mmap, begin: int, placed: Sequence[PlacedTensor]) -> None:
    """Copy the tensors to an image whose header ends at `begin`; copies are complete on return."""
    with _side_stream([each.tensor for each in placed]):
        for each in placed:
            if count := each.tensor.numel():
                there = torch.frombuffer(area, dtype=each.tensor.dtype, count=count, offset=begin + each.begin)
                there.view(each.tensor.shape).copy_(each.tensor, non_blocking=True)


@contextmanager
def _side_stream(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Copy from GPUs on a separate stream, after the work in the queue.

    The stream is synchronized on exit, also after an error, before the memory is used again.
    """
    with ExitStack() as entered:
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            entered.callback(stream.synchronize)
            entered.enter_context(torch.cuda.stream(stream))
        yield


def aligned_copy(image: bytes | memoryview) -> memoryview:
    """A writable, aligned copy of the bytes."""
    copy = torch.empty(len(image), dtype=torch.uint8).numpy().data
    copy[:] = image
    return copy


def tensors_of(area: bytearray | memoryview | mmap.mmap, begin: int, entries: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that a header's entries describe, in `area` from `begin` on. Unaligned tensors are copied."""
    return {name: _tensor(area, begin, entry) for name, entry in entries.items()}


def _tensor(area: bytearray | memoryview | mmap.mmap, begin: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    first, end = entry["data_offsets"]
    if first == end:
        return torch.empty(shape, dtype=dtype)
    count = (end - first) // dtype.itemsize
    tensor = torch.frombuffer(area, dtype=dtype, count=count, offset=begin + first).view(shape)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
