"""The header of a safetensors file: its tensors and their places. Needs no torch."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from typing import Any

LENGTH, MOST_HEADER, PADDING = 8, 2**27, "stagetree.padding"
"""A safetensors file begins with the length of its header in LENGTH bytes; a longer header than MOST_HEADER is
invalid. PADDING: the key in a checkpoint's metadata of the names of its padding tensors."""

Entry = dict[str, Any]
Image = bytes | memoryview | mmap.mmap


ALIGNMENT = 64
LARGE = 2**14
"""Bytes. Smaller tensors are copied as fast as the entry of their padding is read."""

WHOLE_PLACES, LARGE_PLACES, SMALL_PLACES = range(3)


def place_rank(size: int) -> int:
    """The sort key of a tensor by its size: sizes that keep the next tensor aligned come first."""
    if size % ALIGNMENT == 0:
        return WHOLE_PLACES
    return LARGE_PLACES if size >= LARGE else SMALL_PLACES


def header_of(image: Image) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and the offset of its tensors. Raises ValueError."""
    begin = LENGTH + int.from_bytes(image[:LENGTH], "little")
    try:
        header = json.loads(bytes(image[LENGTH:begin]))
    except ValueError:
        header = None
    if begin > len(image) or not isinstance(header, dict):
        raise ValueError("that is no safetensors file")
    return header, begin


def entries_of(header: Mapping[str, Any]) -> dict[str, Entry]:
    """The entry of each tensor, without padding."""
    left_out = {"__metadata__", *json.loads(header.get("__metadata__", {}).get(PADDING, "[]"))}
    return {name: entry for name, entry in header.items() if name not in left_out}


def head_of(header: Mapping[str, Any], alignment: int = LENGTH) -> memoryview:
    """The beginning of a safetensors file, padded to a multiple of `alignment`."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % alignment)
    return memoryview(len(text).to_bytes(LENGTH, "little") + text)
