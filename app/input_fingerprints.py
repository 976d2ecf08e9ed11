"""Looks at files and folders that a study reads, so that others in their place are noticed.

What is small is known by its content. Of what is large, the sizes and times of its files must do: hashing a data set at
each submission would take longer than many a study. A copy with other times counts as another then, never the reverse.
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
"""So many bytes, of all files of a folder together, are hashed."""

PART = 2**20


class InputMissing(Exception):
    """A path cannot be read; the message says which and why."""


def look(path: str, *, is_hashed: bool = True) -> Json:
    """What there is: how many files and bytes, a stamp of sizes and times and, if it is small, a hash of the content.

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


def changed(record: Mapping[str, Any]) -> bool:
    """Whether there is something else now than what was seen. Costs a look at the folder if nothing was changed.

    Raises `InputMissing`.
    """
    path = record["path"]
    if look(path, is_hashed=False)["stamp"] == record["stamp"]:
        return False
    return "sha256" not in record or look(path).get("sha256") != record["sha256"]


def hash_of(path: str) -> str:
    """The SHA-256 of a file. Raises `InputMissing`."""
    with readable(path):
        return _hash(path)


def may_be_read(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is in one of these folders, wherever links lead."""
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, folder]) == folder for folder in map(os.path.realpath, folders))


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raises `InputMissing` where a path cannot be read."""
    try:
        yield
    except OSError as error:
        raise InputMissing(f"{path} cannot be read: {error.strerror or error}") from None


def _files(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files at a path, by their names in it, in order; an empty name for a file itself."""
    if not os.path.isdir(path):
        yield "", os.stat(path)
        return
    folders, been = [""], {os.path.realpath(path)}
    files: list[tuple[str, os.stat_result]] = []
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.name == "__pycache__":
                    continue  # Python makes it when it reads code in a folder
                if not entry.is_dir():
                    files.append((name, _status(entry)))
                elif not entry.is_symlink():
                    folders.append(name)
                elif (real := os.path.realpath(entry.path)) not in been:  # a circle is gone round once
                    been.add(real)
                    folders.append(name)
    yield from sorted(files, key=lambda each: each[0])


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    """Of what a link leads to; of the link itself where it leads nowhere."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return entry.stat(follow_symlinks=False)


def _content(path: str, names: Iterable[str]) -> str:
    """Of a file, the hash that `sha256sum` prints; of a folder, one of the names and hashes of its files."""
    if not os.path.isdir(path):
        return _hash(path)
    whole = sha256()
    for name in names:
        whole.update(f"{name}\0{_hash_of_link(os.path.join(path, name))}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _hash_of_link(path: str) -> str:
    """Of a file in a folder; a link that leads nowhere is what it says."""
    return _hash(path) if os.path.exists(path) else f"-> {os.readlink(path)}"


def _hash(path: str) -> str:
    digest = sha256()
    with Path(path).open("rb") as file:
        while part := file.read(PART):
            digest.update(part)
    return digest.hexdigest()
