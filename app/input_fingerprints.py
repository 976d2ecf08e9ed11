"""Fingerprints of the files and folders that a study reads, to notice replaced ones.

Small inputs are identified by their content, large ones by the sizes and times of their files: hashing a data set at
each submission would take longer than many a study. So a copy of a large input with other times counts as changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SMALL = 64 * 2**20
"""Inputs of up to this many bytes, all files of a folder together, are hashed."""

PART = 2**20


class InputMissing(Exception):
    """A path cannot be read; the message names it and the reason."""


def look(path: str, *, is_hashed: bool = True) -> Json:
    """The number of files and bytes, a stamp of sizes and times and, for small inputs, a hash of the content.

    Raises `InputMissing`.
    """
    with readable(path):
        files = list(_files(path))
        size = sum(status.st_size for _, status in files)
        stamp = sha256()
        for name, status in files:
            stamp.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        stamped: Json = {"path": path, "files": len(files), "bytes": size, "stamp": stamp.hexdigest()}
        if files:
            stamped["modified"] = max(status.st_mtime for _, status in files)
        if is_hashed and size <= SMALL:
            stamped["sha256"] = _content(path, [name for name, _ in files])
    return stamped


def content_changed(record: Mapping[str, Any]) -> bool:
    """Whether an input differs from its record. Cheap if no file was touched. Raises `InputMissing`."""
    path = record["path"]
    if look(path, is_hashed=False)["stamp"] == record["stamp"]:
        return False
    return "sha256" not in record or look(path).get("sha256") != record["sha256"]


def hash_of(path: str) -> str:
    """The SHA-256 of a file. Raises `InputMissing`."""
    with readable(path):
        return _hash(path)


def may_be_read(path: str, folders: Iterable[str]) -> bool:
    """Whether a path, with all links resolved, is in one of these folders."""
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, folder]) == folder for folder in map(os.path.realpath, folders))


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raises `InputMissing` if a path cannot be read."""
    try:
        yield
    except OSError as error:
        raise InputMissing(f"{path} cannot be read: {error.strerror or error}") from None


def _files(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files at a path in order, by their relative names; a file itself has an empty name."""
    if not os.path.isdir(path):
        yield "", os.stat(path)
        return
    folders, visited = [""], {os.path.realpath(path)}
    files: list[tuple[str, os.stat_result]] = []
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.name == "__pycache__":
                    continue  # Python writes it when it imports code
                if not entry.is_dir():
                    files.append((name, _status(entry)))
                elif not entry.is_symlink():
                    folders.append(name)
                elif (real := os.path.realpath(entry.path)) not in visited:  # links may form a cycle
                    visited.add(real)
                    folders.append(name)
    yield from sorted(files, key=lambda each: each[0])


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    """Follows a link; a broken link has its own status."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return entry.stat(follow_symlinks=False)


def _content(path: str, names: Iterable[str]) -> str:
    """For a file the hash that `sha256sum` prints; for a folder a hash of the names and hashes of its files."""
    if not os.path.isdir(path):
        return _hash(path)
    whole = sha256()
    for name in names:
        whole.update(f"{name}\0{_hash_of_link(os.path.join(path, name))}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _hash_of_link(path: str) -> str:
    """The hash of a file in a folder; a broken link is identified by its target."""
    return _hash(path) if os.path.exists(path) else f"-> {os.readlink(path)}"


def _hash(path: str) -> str:
    digest = sha256()
    with Path(path).open("rb") as file:
        while part := file.read(PART):
            digest.update(part)
    return digest.hexdigest()
