"""Checkpoints of `torch.distributed.checkpoint` (DCP), as torchtitan and FSDP scripts write them.

A DCP checkpoint is a folder: `.metadata`, a pickle with the place of each tensor's chunks, and files with the chunks of
each rank. A server packs the folder unchanged into one object, which needs no torch. The chunks are joined where a
model begins with the checkpoint. The pickle may name only a few harmless classes, so that its author cannot run code on
a slot.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = 8
"""An object begins with the length of its header in this many bytes, as a safetensors file does."""

KIND = "dcp"
"""The key in the header's metadata of the files' places."""

METADATA = ".metadata"
PART = 2**24

ALLOWED_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}
"""The classes that the pickle may name, by module, besides torch's dtypes."""


class NotDcp(ValueError):
    """Not a DCP checkpoint, or one that cannot be read; the message is a clause."""


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """A folder as one object: `header`, then the files in this order. size: of the whole object."""

    header: bytes
    paths: tuple[Path, ...]
    size: int

    @classmethod
    def from_folder(cls, folder: Path) -> PackedFolder:
        """Raises `NotDcp`, OSError."""
        if not (folder / METADATA).is_file():
            raise NotDcp(f"has no file {METADATA}")
        paths = tuple(sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink()))
        places, end = dict[str, tuple[int, int]](), 0
        for path in paths:
            begin, end = end, end + path.stat().st_size
            places[path.name] = begin, end
        text = json.dumps({"__metadata__": {KIND: json.dumps(places)}}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH)
        return cls(len(text).to_bytes(LENGTH, "little") + text, paths, LENGTH + len(text) + end)

    def parts(self) -> Iterator[bytes]:
        """The object in parts. Raises OSError."""
        yield self.header
        for path in self.paths:
            with path.open("rb") as file:
                while part := file.read(PART):
                    yield part


def tensors_in(image: memoryview, header: Mapping[str, Any], begin: int) -> dict[str, Tensor]:
    """The tensors of a packed folder by name, copied. Needs torch.

    begin: the offset of the files in the object. Raises `NotDcp`.
    """
    import torch
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

    places = json.loads(header["__metadata__"][KIND])
    files = {name: image[begin + first : begin + end] for name, (first, end) in places.items()}
    tensors: dict[str, Tensor] = {}
    metadata = _metadata_in(files[METADATA])
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue
        tensors[name] = whole = torch.empty(entry.size, dtype=entry.properties.dtype)
        for chunk in entry.chunks:
            piece = _piece(files, metadata.storage_data.get(MetadataIndex(name, chunk.offsets)), name)
            there = whole
            for axis, (first, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                there = there.narrow(axis, first, length)
            there.copy_(piece)
    if not tensors:
        raise NotDcp("holds no tensors")
    return tensors


def _piece(files: Mapping[str, memoryview], stored: Any, name: str) -> Tensor:
    """The stored chunk, which has the form of `torch.save`."""
    import torch

    if stored is None or stored.relative_path not in files:
        raise NotDcp(f"lacks a part of {name}")
    if getattr(stored, "transform_descriptors", None):
        raise NotDcp(f"has {name} compressed or encrypted, which is not read")
    area = files[stored.relative_path][stored.offset : stored.offset + stored.length]
    piece = torch.load(io.BytesIO(area), map_location="cpu", weights_only=True)
    if not isinstance(piece, torch.Tensor):
        raise NotDcp(f"has no tensor at {name}")
    return piece.detach()


def _metadata_in(content: memoryview) -> Any:
    try:
        return _RestrictedUnpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise NotDcp(f"has a file {METADATA} that is not read: {error}") from None


class _RestrictedUnpickler(pickle.Unpickler):
    """Unpickles the classes in `ALLOWED_CLASSES` only."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in ALLOWED_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")
