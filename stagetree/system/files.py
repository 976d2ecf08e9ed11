"""Files without a name, and the files that processes hold open or mapped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stagetree.system.processes import PROC, words

ANONYMOUS = "/memfd:stagetree"
"""How an anonymous file is called among the open files of a process."""


def anonymous_file(size: int) -> int:
    """The descriptor of a new file in memory, or of an unlinked one on disk. Raises OSError if there is no room."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(ANONYMOUS.partition(":")[2])
    else:
        fd, path = tempfile.mkstemp(prefix="stagetree-")
        os.unlink(path)
    try:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)  # otherwise a full memory would be a SIGBUS while writing
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def descriptor_path(fd: int) -> str:
    """A path that opens the file of a descriptor of this process: in /proc, or else in /dev/fd, as BSD has."""
    path = PROC / "self" / "fd" / str(fd)
    return str(path) if os.path.exists(path) else f"/dev/fd/{fd}"


def lists_descriptors() -> bool:
    """Whether the system says which files a process has open."""
    return os.path.exists(PROC / "self" / "fd")


def descriptors() -> Iterator[tuple[int, os.stat_result]]:
    """The open files of this process. Raises OSError where they are unknown."""
    for name in os.listdir(PROC / "self" / "fd"):
        with suppress(OSError):  # the descriptor of this listing itself
            yield int(name), os.fstat(int(name))


def target(fd: int) -> str:
    """The path or kind of an open file of this process. Raises OSError where it is unknown."""
    return os.readlink(PROC / "self" / "fd" / str(fd))


def is_read_only(fd: int) -> bool:
    """Whether a descriptor of this process cannot write; False where that is unknown."""
    return _flags("self", str(fd)) & os.O_ACCMODE == os.O_RDONLY


def _flags(pid: str, fd: str) -> int:
    found = words(Path(PROC, pid, "fdinfo", fd))
    return int(found[found.index("flags:") + 1], 8) if "flags:" in found else os.O_RDWR


def mappings(pid: str = "self") -> list[str]:
    """The lines of a process's memory map, see proc(5). Raises OSError where it is unknown."""
    return Path(PROC, pid, "maps").read_text(errors="surrogateescape").splitlines()


def files_held(pid: str) -> Iterator[str]:
    """The files that a process holds open read-only, or has mapped privately; none where they are unknown."""
    with suppress(OSError):  # it has ended
        for fd in sorted(os.listdir(Path(PROC, pid, "fd")), key=int):
            with suppress(OSError):
                name = os.readlink(Path(PROC, pid, "fd", fd))
                if name.startswith("/") and not _flags(pid, fd) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                    yield name  # not a pipe or a socket
    with suppress(OSError):
        for line in mappings(pid):
            _, rights, _, _, _, *path = line.split(maxsplit=5)
            if path and rights != "rw-s":
                yield path[0]


def loaded_libraries(name: str) -> set[str]:
    """The loaded shared libraries with `name` in their path; none where they are unknown."""
    try:
        paths = {line.split(maxsplit=5)[-1].strip() for line in mappings() if name in line}
    except OSError:
        return set()
    return {path for path in paths if path.startswith("/") and ".so" in path}
