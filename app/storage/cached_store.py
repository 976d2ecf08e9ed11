"""Checkpoints on a disk of this machine, beside the store of all: slots of one host read nothing of a bucket twice."""

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
"""Below the folder that was named: its other files are not ours to delete."""

Part = TypeVar("Part", bytes, memoryview)


class CachedStore:
    """An `ObjectStore` that keeps copies of what is written and read in a folder, up to so many bytes in all.

    The folder is shared by the slots of a host, each of which makes room in it: the copies used longest ago go first.
    A copy that cannot be made, for a full disk say, is left out. Readers compare the hash of a copy, as of any object,
    and have it dropped if it is damaged.
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
    """A copy on its way to the folder: its errors do not concern the writer or reader of the object."""

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        self._folder, self._path, self._limit = folder, folder / key, limit
        self._partial = folder / f"{uuid4().hex}.partial"
        self._size = 0
        self._fd = -1
        self._try(self._begin)

    def copy_parts(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The same parts, each of which is copied on its way."""
        for part in parts:
            self._try(partial(self._add, part))
            yield part

    def finish(self) -> bool:
        """The object is whole: it can be found from here on, unless something was wrong with its copy."""
        if self._fd >= 0:
            self._try(self._place)
        is_there = self._fd >= 0
        self.discard()
        return is_there

    def discard(self) -> None:
        """There is no such object, or no room for it."""
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
    """When each was used last, its size in bytes, and where it is; also of copies that were broken off."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if path.is_file() and path != but:
                yield status.st_mtime, status.st_size, path
