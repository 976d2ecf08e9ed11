"""Copies of checkpoints on a local disk: the slots of one machine read no object of a bucket twice."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from app.storage.object_store import ObjectStat, ObjectStore

logger = logging.getLogger(__name__)

FOLDER = "stagetree-checkpoints"
"""Below the configured folder, whose other files are not ours to delete."""

Part = TypeVar("Part", bytes, memoryview)


class CachedStore:
    """An `ObjectStore` that keeps copies of written and read objects in a folder, up to a size limit.

    The slots of a machine share the folder, and each makes room in it: the least recently used copies go first. If a
    copy cannot be made, for example on a full disk, there is none. Readers check the hash of a copy as of any object,
    and have a damaged one deleted.
    """

    def __init__(self, store: ObjectStore, folder: Path, limit: int) -> None:
        self._store, self._folder, self._limit = store, folder / FOLDER, limit

    @property
    def prefix(self) -> str:
        return self._store.prefix

    def cache(self, key: str, parts: Iterable[memoryview]) -> bool:
        copy = self._new_copy(key)
        for _ in copy.copy_parts(parts):
            pass
        return copy.finish()

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        if (self._folder / key).exists():
            self._store.write(key, parts)
            return
        copy = self._new_copy(key)
        try:
            self._store.write(key, copy.copy_parts(parts))
        except BaseException:
            copy.discard()
            raise
        copy.finish()

    def read(self, key: str) -> Iterator[bytes]:
        copy = self._new_copy(key)
        try:
            yield from copy.copy_parts(self._store.read(key))
        except BaseException:
            copy.discard()
            raise
        copy.finish()

    def open(self, key: str) -> int | None:
        path = self._folder / key
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                os.utime(path)
            return fd
        return self._store.open(key)

    def delete(self, key: str) -> None:
        self.distrust(key)
        self._store.delete(key)

    def distrust(self, key: str) -> bool:
        with suppress(OSError):
            (self._folder / key).unlink()
            return True
        return self._store.distrust(key)

    def all_keys(self) -> Iterator[str]:
        return self._store.all_keys()

    def stat(self, key: str) -> ObjectStat:
        return self._store.stat(key)

    def _new_copy(self, key: str) -> _Copy:
        return _Copy(self._folder, key, self._limit)


class _Copy:
    """A copy that is being written. Its errors do not affect the writer or reader of the object."""

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        self._folder, self._path, self._limit = folder, folder / key, limit
        self._partial = folder / f"{uuid4().hex}.partial"
        self._size = 0
        self._fd = -1
        self._try(self._begin)

    def copy_parts(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the same parts, and copy each."""
        for part in parts:
            self._try(partial(self._add, part))
            yield part

    def finish(self) -> bool:
        """Publish the copy; returns whether that worked."""
        if self._fd >= 0:
            self._try(self._place)
        is_there = self._fd >= 0
        self.discard()
        return is_there

    def discard(self) -> None:
        """Delete the incomplete copy."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._partial.unlink(missing_ok=True)

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as problem:
            logger.warning("no copy of %s in %s: %s", self._path.name, self._folder, problem)
            self.discard()

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def _add(self, part: bytes | memoryview) -> None:
        if self._fd < 0:
            return
        rest = memoryview(part)
        self._size += len(rest)
        if self._size > self._limit:
            self.discard()
            return
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _place(self) -> None:
        self._make_room()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial.replace(self._path)

    def _make_room(self) -> None:
        copies = sorted(_copies(self._folder, but=self._partial))
        total = self._size + sum(size for _, size, _ in copies)
        for _, size, path in copies:
            if total <= self._limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def _copies(folder: Path, but: Path) -> Iterator[tuple[float, int, Path]]:
    """Last use, size and path of each copy, including incomplete ones."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file() and path != but:
                yield status.st_mtime, status.st_size, path
