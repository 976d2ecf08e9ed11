"""Where checkpoints are stored: one immutable object each, in a folder or a bucket.

An object has its name only once it is complete, and is never overwritten. Objects are found by the log, and listed only
to find orphans (`app.storage.owned_store`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from app.outages import Unavailable
from app.storage.s3_parts import CONNECT_SECONDS, READ_SECONDS, DirectParts
from stagetree.atomic_file import atomic_file

T = TypeVar("T")

PART = 16 * 2**20
"""Bytes of a part, when reading and writing."""

IN_FLIGHT = 12
"""How many parts of an S3 object are transferred at once: one stream uses a small share of a machine's bandwidth."""

S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,
    "config_kwargs": {
        "signature_version": "s3v4",  # of signed URLs as well, which would have the one of 2006 else
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"max_attempts": 2},
        "max_pool_connections": IN_FLIGHT + 4,
    },
}
"""Short timeouts, because we retry ourselves."""


DELETED = "If it was deleted, make it again, empty: lost steps are then trained again"
"""What to do about a folder that is gone for good."""


class StoreUnavailable(Unavailable):
    """The store failed; the message names the object and the reason. A later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """An object's size in bytes, and the time of writing in Unix seconds by the store's clock."""

    size: int
    at: float


class ObjectStore(Protocol):
    """Bytes by key. Methods raise what the underlying library raises; a missing object is FileNotFoundError."""

    @property
    def prefix(self) -> str:
        """The first part of the keys of new objects."""
        return ""

    def write(self, key: str, parts: Iterable[memoryview]) -> None: ...

    def cache(self, key: str, parts: Iterable[memoryview]) -> bool:
        """Keep a copy, for the slots of this machine, of an object that will be written next. False if there is no
        cache.
        """
        return False

    def read(self, key: str) -> Iterator[bytes]: ...

    def delete(self, key: str) -> None: ...

    def distrust(self, key: str) -> bool:
        """A read object was damaged: delete the cached copy that it came from. False if it was no copy."""
        return False

    def open(self, key: str) -> int | None:
        """A file descriptor of the object if it is a local file, else None."""
        return None

    def all_keys(self) -> Iterator[str]:
        """All keys, including those of incomplete objects if they have one."""

    def stat(self, key: str) -> ObjectStat: ...


LOG = "stagetree.db"
"""The log of an embedded stack, in the same folder as its checkpoints."""


class LocalStore(ObjectStore):
    """A local folder, or one that all machines mount.

    If the folder is missing, its disk is not mounted: the store is unavailable, and no object is missing. A folder
    beside its own log is on the same disk as the log, so it was deleted instead. A marker file in the folder could not
    tell these apart: a slot that writes before the disk is mounted would leave one below the mount point.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        with atomic_file(self._root / key, buffering=0) as file:
            for part in parts:
                while part:
                    part = part[file.write(part) :]
            os.fsync(file.fileno())

    def read(self, key: str) -> Iterator[bytes]:
        with os.fdopen(self.open(key), "rb") as file:
            while part := file.read(PART):
                yield part

    def open(self, key: str) -> int:
        self._check_mounted()
        return os.open(self._root / key, os.O_RDONLY)

    def delete(self, key: str) -> None:
        self._check_mounted()
        (self._root / key).unlink(missing_ok=True)

    def all_keys(self) -> Iterator[str]:
        for path in self._root.rglob("*"):
            if path.is_file():
                yield path.relative_to(self._root).as_posix()

    def stat(self, key: str) -> ObjectStat:
        status = (self._root / key).stat()
        return ObjectStat(status.st_size, status.st_mtime)

    def _check_mounted(self) -> None:
        """Objects of an unmounted folder are neither missing nor deleted."""
        is_beside_its_log = not self._root.is_symlink() and (self._root.parent / LOG).is_file()
        if not self._root.is_dir() and not is_beside_its_log:
            raise NotADirectoryError(f"the folder {self._root} is not there; is it mounted? {DELETED}")


class FsspecStore(ObjectStore):
    """Any file system that fsspec supports. Large objects are uploaded in parts if it can do that."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        import fsspec

        self._fs, self._root = fsspec.core.url_to_fs(url, **self.options)

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        file = self._fs.open(f"{self._root}/{key}", "wb", block_size=PART)
        try:
            for part in parts:
                file.write(part)
        except BaseException:
            file.discard()
            file.closed = True  # or its finalizer would upload the incomplete object
            raise
        file.close()

    def read(self, key: str) -> Iterator[bytes]:
        path = f"{self._root}/{key}"
        size = self._fs.size(path)
        ranges = ((begin, min(begin + PART, size)) for begin in range(0, size, PART))
        yield from _run_concurrently(partial(self._part, path, *each) for each in ranges)

    def delete(self, key: str) -> None:
        self._fs.rm_file(f"{self._root}/{key}")

    def all_keys(self) -> Iterator[str]:
        for path in self._fs.find(self._root):
            yield path.removeprefix(f"{self._root}/")

    def stat(self, key: str) -> ObjectStat:
        path = f"{self._root}/{key}"
        return ObjectStat(self._fs.size(path), self._fs.modified(path).timestamp())

    def _part(self, path: str, begin: int, end: int) -> bytes:
        part: bytes = self._fs.cat_file(path, start=begin, end=end)
        if len(part) != end - begin:  # or a connection that broke would look like a damaged object
            raise ConnectionError(f"{len(part)} of the {end - begin} bytes from {begin} on came")
        return part


class S3Store(FsspecStore):
    """S3. The parts of a large object are uploaded in parallel, and transferred over connections of our own."""

    options = S3_OPTIONS

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.direct = DirectParts(self._fs, IN_FLIGHT)

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        path, chunks = f"{self._root}/{key}", _chunks(parts)
        begin = list(islice(chunks, 2))
        if len(begin) < 2:
            self._fs.pipe_file(path, b"".join(begin))
            return
        bucket, name, _ = self._fs.split_path(path)
        place = {"Bucket": bucket, "Key": name}
        place["UploadId"] = self._fs.call_s3("create_multipart_upload", **place)["UploadId"]
        try:
            calls = (partial(self._upload, place, *each) for each in enumerate(chain(begin, chunks), 1))
            uploaded = {"Parts": list(_run_concurrently(calls))}
            self._fs.call_s3("complete_multipart_upload", **place, MultipartUpload=uploaded)
        except BaseException:
            self._fs.call_s3("abort_multipart_upload", **place)
            raise

    def _upload(self, place: Mapping[str, str], number: int, chunk: bytes | memoryview) -> dict[str, Any]:
        etag = self.direct.put(place, number, chunk)
        if etag is None:
            etag = self._fs.call_s3("upload_part", **place, PartNumber=number, Body=bytes(chunk))["ETag"]
        return {"PartNumber": number, "ETag": etag}

    def _part(self, path: str, begin: int, end: int) -> bytes:
        part = self.direct.get(path, begin, end) if end - begin == PART else None  # less is not worth it
        return super()._part(path, begin, end) if part is None else part


def open_store(root: str) -> ObjectStore:
    """root: a folder, or a URL such as `s3://bucket/prefix`."""
    if root.startswith("s3://"):
        return S3Store(root)
    return FsspecStore(root) if "://" in root else LocalStore(root)


def _run_concurrently(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of calls in their order, with a few calls under way at once."""
    with ThreadPoolExecutor(IN_FLIGHT, "store") as pool:
        waiting = deque[Future[T]]()
        try:
            for call in calls:
                waiting.append(pool.submit(call))
                if len(waiting) == IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def _chunks(parts: Iterable[memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of `PART`; the last one may be shorter. Pieces of that size are not copied."""
    rest = bytearray()
    for part in parts:
        begin = 0
        while len(rest) + len(part) - begin >= PART:
            end = begin + PART - len(rest)
            yield b"".join((rest, part[begin:end])) if rest else part[begin:end]
            rest, begin = bytearray(), end
        rest += part[begin:]
    if rest:
        yield bytes(rest)
