"""Where checkpoints are kept: one immutable object each, in a folder or a bucket, read back only if its hash is right.

A checkpoint exists because a fact in the log names it; what was written and never named is garbage. Objects are never
overwritten and never listed (notes on both in docs/decisions/0006-checkpoints.md).
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from uuid import uuid4


class CheckpointLost(Exception):
    """A checkpoint that is not there, or not what it was."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the log must know of a checkpoint to find it again and to trust it."""

    key: str
    sha256: str
    size: int


class Shelf(Protocol):
    """Holds bytes under a key."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...


class Folder:
    """A folder of this machine, or one that all machines mount. What has a name is whole: it is renamed into place."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def put(self, key: str, data: bytes) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def get(self, key: str) -> bytes:
        return (self._root / key).read_bytes()


class Bucket:
    """Any file system that fsspec knows, S3 first of all. An object appears whole or not at all."""

    def __init__(self, url: str) -> None:
        import fsspec

        options: dict[str, Any] = {"use_listings_cache": False} if url.startswith("s3://") else {}
        self._fs, self._root = fsspec.core.url_to_fs(url, **options)

    def put(self, key: str, data: bytes) -> None:
        self._fs.pipe_file(f"{self._root}/{key}", data)

    def get(self, key: str) -> bytes:
        data: bytes = self._fs.cat_file(f"{self._root}/{key}")
        return data


class Checkpoints:
    """The checkpoints of an installation. Keeps what it wrote or read last in memory, up to `memory` bytes."""

    def __init__(self, root: str, *, memory: int = 0) -> None:
        self._shelf: Shelf = Bucket(root) if "://" in root else Folder(root)
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._memory, self._held, self._lock = memory, 0, Lock()

    def write(self, place: str, data: bytes) -> Stored:
        """Store `data` under a new key that begins with `place`. Raises OSError."""
        key = f"{place}-{uuid4().hex[:12]}.safetensors"
        self._shelf.put(key, data)
        self._remember(key, data)
        return Stored(key, hashlib.sha256(data).hexdigest(), len(data))

    def read(self, key: str, sha256: str) -> bytes:
        """The bytes of a checkpoint. Raises `CheckpointLost` when it is gone or damaged, OSError when unreachable."""
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key]
        try:
            data = self._shelf.get(key)
        except FileNotFoundError:
            raise CheckpointLost(f"checkpoint {key} is not there any more") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CheckpointLost(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
        self._remember(key, data)
        return data

    def _remember(self, key: str, data: bytes) -> None:
        with self._lock:
            self._recent[key] = data
            self._held += len(data)
            while self._held > self._memory and self._recent:
                self._held -= len(self._recent.popitem(last=False)[1])
