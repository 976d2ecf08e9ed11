"""The header of a safetensors file: which tensors it holds, and where. Needs no torch."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from typing import Any

LENGTH, MOST_HEADER, PADDING = 8, 2**27, "stagetree.padding"
"""A safetensors file begins with the length of its header, in so many bytes; one of more bytes than that is none. The
metadata in a checkpoint's header lists the names of its tensors of padding under `PADDING`."""

Entry = dict[str, Any]
Image = bytes | memoryview | mmap.mmap


ALIGNMENT = 64
LARGE = 2**14
"""Bytes. Copying a smaller tensor takes no longer than reading the entry of its padding."""

WHOLE_PLACES, LARGE_PLACES, SMALL_PLACES = range(3)


def place_rank(size: int) -> int:
    """The sort key of a tensor of `size` bytes in a checkpoint: sizes that keep the next tensor aligned come first."""
    if size % ALIGNMENT == 0:
        return WHOLE_PLACES
    return LARGE_PLACES if size >= LARGE else SMALL_PLACES


def header_of(image: Image) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where the tensors begin. Raises ValueError."""
    begin = LENGTH + int.from_bytes(image[:LENGTH], "little")
    try:
        header = json.loads(bytes(image[LENGTH:begin]))
    except ValueError:
        header = None
    if begin > len(image) or not isinstance(header, dict):
        raise ValueError("that is no safetensors file")
    return header, begin


def entries_of(header: Mapping[str, Any]) -> dict[str, Entry]:
    """What a header says of each tensor, without tensors of padding."""
    left_out = {"__metadata__", *json.loads(header.get("__metadata__", {}).get(PADDING, "[]"))}
    return {name: entry for name, entry in header.items() if name not in left_out}


def head_of(header: Mapping[str, Any], alignment: int = LENGTH) -> memoryview:
    """What a safetensors file begins with. Its size is a multiple of `alignment`."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % alignment)
    return memoryview(len(text).to_bytes(LENGTH, "little") + text)
