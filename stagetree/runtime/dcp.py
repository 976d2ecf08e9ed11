"""Checkpoints of `torch.distributed.checkpoint` (DCP), as torchtitan, FSDP scripts and others write them.

Such a checkpoint is a folder: `.metadata`, a pickle that says where the pieces of each tensor lie, and files with these
pieces, one or more of each rank. A server packs the folder into one object, as it is, and needs no torch for that.
Where a model begins with it, the pieces are put together. The pickle may name nothing but a few harmless classes: the
author of a checkpoint must not run code on a slot.
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
"""An object begins with the length of its header, in so many bytes, as a safetensors file does."""

KIND = "dcp"
"""The name in a header's metadata under which it says which file lies where."""

METADATA = ".metadata"
PART = 2**24

KNOWN = {
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
"""What the pickle may name, by module; of torch the dtypes as well."""


class NotDcp(ValueError):
    """A folder or an object is no checkpoint of DCP, or one that cannot be read; the message is a clause."""


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """A folder as one object: `header`, and behind it the files, in this order. size: of the whole."""

    header: bytes
    paths: tuple[Path, ...]
    size: int

    @classmethod
    def of(cls, folder: Path) -> PackedFolder:
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
        """The object, piece by piece. Raises OSError."""
        yield self.header
        for path in self.paths:
            with path.open("rb") as file:
                while part := file.read(PART):
                    yield part


def tensors_in(image: memoryview, header: Mapping[str, Any], begin: int) -> dict[str, Tensor]:
    """The tensors of a packed folder by their names, in memory of their own. Needs torch.

    header, begin: of the object, and where its files begin. Raises `NotDcp`.
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
    """The tensor that lies there, in a form of `torch.save`."""
    import torch

    if stored is None or stored.relative_path not in files:
        raise NotDcp(f"lacks a part of {name}")
    if getattr(stored, "transform_descriptors", None):
        raise NotDcp(f"has {name} compressed or encrypted, which is not read")
    area = files[stored.relative_path][stored.offset : stored.offset + stored.length]
    piece = torch.load(io.BytesIO(area), map_location="cpu", weights_only=True)
    if not isinstance(piece, torch.Tensor):
        raise NotDcp(f"has something else in the place of {name}")
    return piece.detach()


def _metadata_in(content: memoryview) -> Any:
    try:
        return _Careful(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise NotDcp(f"has a file {METADATA} that is not read: {error}") from None


class _Careful(pickle.Unpickler):
    """Makes objects of the kinds in `KNOWN`, and of no others."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in KNOWN.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")
