"""Fingerprints of the files and folders that a study reads, to notice replaced ones.

Small inputs are identified by their content, large ones by the sizes and times of their files: hashing a data set at
each submission would take longer than many a study. So a copy of a large input with other times counts as changed.

Users choose these paths. Only regular files and folders are read, and of a file no more than its size: a device never
ends. A path may still block, as on a dead mount, so services look through `app.input_reader`.

InputMissing        a path cannot be read
└── InputUnread     it was not looked at, and may be there
    ├── InputForbidden  it is in no folder that studies may name
    └── InputTimeout    it was not read in time
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

Json = dict[str, Any]

SMALL = 64 * 2**20
"""Inputs of up to this many bytes, all files of a folder together, are hashed."""

PART = 2**20

MAX_FILES = 2_000_000
"""The most files and folders in an input: their names take half a gigabyte."""

EVERYWHERE = ("/",)

KERNEL_FOLDERS = ("/proc", "/sys")
"""Their regular files have no size, and may block or never end."""

BROKEN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors of links that lead nowhere."""

UNREAD_KINDS = {
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFIFO: "is a FIFO",
    stat.S_IFSOCK: "is a socket",
}


class InputMissing(Exception):
    """A path cannot be read; the message names it and the reason."""


class InputUnread(InputMissing):
    """A path that was not looked at, although it may be there."""


class InputForbidden(InputUnread):
    """A path that studies may not name."""


class InputTimeout(InputUnread):
    """A path that was not read in time."""


class _File(NamedTuple):
    """identity: what stands for the content of something that is not read."""

    name: str
    size: int
    modified_ns: int
    identity: str = ""


def look(path: str, folders: Iterable[str] = EVERYWHERE, *, is_hashed: bool = True) -> Json:
    """The number of files and bytes, a stamp of sizes and times and, for small inputs, a hash of the content.

    folders: where it may read. Links out of them are identified by their targets. Raises `InputMissing`.
    """
    with readable(path):
        check_allowed(path, folders)
        files = _files(path, list(folders))
        size = sum(file.size for file in files)
        stamp = sha256()
        for file in files:
            stamp.update(f"{file.name}\0{file.size}\0{file.modified_ns}\n".encode("utf-8", "surrogateescape"))
        stamped: Json = {"path": path, "files": len(files), "bytes": size, "stamp": stamp.hexdigest()}
        if files:
            stamped["modified"] = max(file.modified_ns for file in files) / 1e9
        if is_hashed and size <= SMALL:
            stamped["sha256"] = _content(path, files)
    return stamped


def content_changed(record: Mapping[str, Any], folders: Iterable[str] = EVERYWHERE) -> bool:
    """Whether an input differs from its record. Cheap if no file was touched. Raises `InputMissing`."""
    path, folders = record["path"], list(folders)
    if look(path, folders, is_hashed=False)["stamp"] == record["stamp"]:
        return False
    return "sha256" not in record or look(path, folders).get("sha256") != record["sha256"]


def hash_of(path: str) -> str:
    """The SHA-256 of a file. Raises `InputMissing`."""
    with readable(path):
        return _hash(path)


def may_be_read(path: str, folders: Iterable[str]) -> bool:
    """Whether a path, with all links resolved, is in one of these folders."""
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, folder]) == folder for folder in map(os.path.realpath, folders))


def check_allowed(path: str, folders: Iterable[str]) -> None:
    """Raises `InputForbidden` unless the path is in one of these folders."""
    if not may_be_read(path, folders):
        raise InputForbidden(f"{path} is in no folder that STAGETREE_STUDY_FILES names")


def check_readable(path: str, folders: Iterable[str] = EVERYWHERE) -> None:
    """Read the beginning of a file, or the names in a folder. Raises `InputMissing`."""
    with readable(path):
        check_allowed(path, folders)
        if stat.S_ISDIR(_status_of_input(path).st_mode):
            os.listdir(path)
        else:
            with open_file(path) as file:
                file.read(1)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raises `InputMissing` if a path cannot be read."""
    try:
        yield
    except OSError as error:
        raise InputMissing(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """A regular file, opened for reading. Raises OSError, and `InputUnread` for anything else."""
    _status_of_input(path)  # before it is opened, which has effects on some devices
    with Path(path).open("rb") as file:
        _check_kind(path, os.fstat(file.fileno()))
        yield file


def _status_of_input(path: str) -> os.stat_result:
    """Raises OSError, and `InputUnread` for anything but a file or a folder."""
    status = os.stat(path)
    _check_kind(path, status)
    if may_be_read(path, KERNEL_FOLDERS):
        raise InputUnread(f"{path} is in {' or '.join(KERNEL_FOLDERS)}, whose files are made by the kernel")
    return status


def _check_kind(path: str, status: os.stat_result) -> None:
    if kind := _kind(status):
        raise InputUnread(f"{path} {kind}")


def _kind(status: os.stat_result) -> str:
    """Empty for a file or a folder."""
    return UNREAD_KINDS.get(stat.S_IFMT(status.st_mode), "")


def _files(path: str, folders: Sequence[str]) -> list[_File]:
    """The files at a path in order, by their relative names; a file itself has an empty name."""
    status = _status_of_input(path)
    if not stat.S_ISDIR(status.st_mode):
        return [_File("", status.st_size, status.st_mtime_ns)]
    return sorted(_files_in(path, folders), key=lambda file: file.name)


def _files_in(path: str, folders: Sequence[str]) -> Iterator[_File]:
    """Raises OSError, and `InputUnread` if there are more than `MAX_FILES`. What vanishes meanwhile is left out."""
    left, visited, count = [""], {os.path.realpath(path)}, 0
    is_fenced = not may_be_read("/", folders)
    while left:
        folder = left.pop()
        for entry in _entries(path, folder):
            if entry.name == "__pycache__":
                continue  # Python writes it when it imports code
            if (count := count + 1) > MAX_FILES:
                raise InputUnread(f"{path} holds more than {MAX_FILES:,} files and folders")
            name = os.path.join(folder, entry.name)
            status = _status(entry)
            if status is None or (is_fenced and entry.is_symlink() and not may_be_read(entry.path, folders)):
                yield from _link(entry, name)
            elif not stat.S_ISDIR(status.st_mode):
                kind = _kind(status)
                yield _File(name, 0, 0, kind) if kind else _File(name, status.st_size, status.st_mtime_ns)
            elif not entry.is_symlink():
                left.append(name)
            elif (real := os.path.realpath(entry.path)) not in visited:  # links may form a cycle
                visited.add(real)
                left.append(name)


def _entries(path: str, folder: str) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder; none if it is not the first one and has just vanished."""
    try:
        with os.scandir(os.path.join(path, folder)) as entries:
            yield from entries
    except FileNotFoundError:
        if not folder:
            raise


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Follows a link; None for a broken one, and for an entry that has just vanished."""
    try:
        return entry.stat()
    except OSError as error:
        if error.errno not in BROKEN:
            raise
        return None


def _link(entry: os.DirEntry[str], name: str) -> Iterator[_File]:
    """A link that is broken or leads out; nothing if it has just vanished."""
    with suppress(FileNotFoundError):
        status = entry.stat(follow_symlinks=False)
        yield _File(name, status.st_size, status.st_mtime_ns, f"-> {os.readlink(entry.path)}")


def _content(path: str, files: Sequence[_File]) -> str:
    """For a file the hash that `sha256sum` prints; for a folder a hash of the names and hashes of its files."""
    if len(files) == 1 and not files[0].name:
        return _hash(path, files[0].size)
    whole = sha256()
    for file in files:
        content = file.identity or _hash(os.path.join(path, file.name), file.size)
        whole.update(f"{file.name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _hash(path: str, size: int | None = None) -> str:
    """The hash of a file's first bytes: a file that grows would be read for ever. size: by default the present one."""
    digest = sha256()
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size if size is None else size
        while part := file.read(min(PART, left)):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()
