"""Looks at files and folders that a study reads, so that others in their place are noticed.

What is small is known by its content. Of what is large, the sizes and times of its files must do: hashing a data set at
each submission would take longer than many a study. A copy with other times counts as another then, never the reverse.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SMALL = 64 * 2**20
"""So many bytes, of all files of a folder together, are hashed."""

PART = 2**20

SAMPLES, SAMPLE_PART = 64, 2**16
"""Of a pattern's files so many are looked at, and so much of both ends of each."""


class InputMissing(Exception):
    """A path cannot be read; the message says which and why."""


def look(path: str, *, is_hashed: bool = True) -> Json:
    """What there is: how many files and bytes, a stamp of sizes and times and, if it is small, a hash of the content.

    Raises `InputMissing`.
    """
    with _readable(path):
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


def look_at_found(paths: Iterable[str]) -> list[Json]:
    """The same of files that no study names, but a trainer was seen to read; without files that are gone.

    paths: of files, and patterns of many, such as `/data/train/*.png`. Nobody has promised that they stay as they are,
    so a copy with other times must not count as another one: of files that are large together, both `ends` tell.
    Their records say that they were `found`.
    """
    records, left = list[Json](), SMALL
    for path in paths:
        with suppress(InputMissing):
            if _is_pattern(path):
                records.append({**_look_at_many(path), "ends": _hash_of_samples(path), "found": True})
                continue
            seen = look(path, is_hashed=False)
            is_small = seen["bytes"] <= left
            left -= seen["bytes"] if is_small else 0
            content = {"sha256": hash_of(path)} if is_small else {"ends": _hash_of_ends(path)}
            records.append({**seen, **content, "found": True})
    return records


def changed(record: Mapping[str, Any]) -> bool:
    """Whether there is something else now than what was seen. Costs a look at the folder if nothing was changed.

    Raises `InputMissing`.
    """
    path, is_many = record["path"], "found" in record and _is_pattern(record["path"])
    seen = _look_at_many(path) if is_many else look(path, is_hashed=False)
    if seen["stamp"] == record["stamp"]:
        return False
    if "ends" in record:
        return (_hash_of_samples(path) if is_many else _hash_of_ends(path)) != str(record["ends"])
    return "sha256" not in record or look(path).get("sha256") != record["sha256"]


def _is_pattern(path: str) -> bool:
    return "/*" in path and not os.path.exists(path)


def _look_at_many(pattern: str) -> Json:
    """How many files there are, and a stamp of their names, and of sizes and times of samples. It costs what a trainer
    needs to list its data set: sizes of a million files, on a network's disk, would take minutes."""
    folder, names = _matching(pattern)
    stamp = sha256("\0".join(names).encode("utf-8", "surrogateescape"))
    for path in _samples(folder, names):
        with _readable(path):
            status = os.stat(path)
        stamp.update(f"{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return {"path": pattern, "files": len(names), "stamp": stamp.hexdigest()}


def _hash_of_samples(pattern: str) -> str:
    """Of the names of all its files, and of both ends of samples. Raises `InputMissing`."""
    folder, names = _matching(pattern)
    whole = sha256("\0".join(names).encode("utf-8", "surrogateescape"))
    for path in _samples(folder, names):
        whole.update(_hash_of_ends(path, SAMPLE_PART).encode())
    return whole.hexdigest()


def _matching(pattern: str) -> tuple[str, list[str]]:
    """The folder of a pattern, and the names in it. Raises `InputMissing`."""
    folder, _, rest = pattern.partition("/*")
    names = sorted(glob(f"*{rest}", root_dir=folder or "/"))
    if not names:
        raise InputMissing(f"{pattern} is the name of no file")
    return folder, names


def _samples(folder: str, names: list[str]) -> Iterator[str]:
    """Some from all over, the same ones each time."""
    number = min(len(names), SAMPLES)
    return (f"{folder}/{names[index * len(names) // number]}" for index in range(number))


def hash_of(path: str) -> str:
    """The SHA-256 of a file. Raises `InputMissing`."""
    with _readable(path):
        return _hash(path)


def may_be_read(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is in one of these folders, wherever links lead."""
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, folder]) == folder for folder in map(os.path.realpath, folders))


@contextmanager
def _readable(path: str) -> Iterator[None]:
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


def _hash_of_ends(path: str, part: int = PART) -> str:
    """Of the size of a file, and its first and last part. Raises `InputMissing`."""
    with _readable(path), Path(path).open("rb") as file:
        digest = sha256(file.read(part))
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - part, 0))
        digest.update(file.read(part) + str(end).encode())
    return digest.hexdigest()


def _hash(path: str) -> str:
    digest = sha256()
    with Path(path).open("rb") as file:
        while part := file.read(PART):
            digest.update(part)
    return digest.hexdigest()
