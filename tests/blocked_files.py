"""Paths that a careless reader never comes back from, without root: `KINDS`; and a dead mount: `block_opening`."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_leases = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")


@contextmanager
def block_opening(path: Path) -> Iterator[None]:
    """To open this file blocks in the kernel, as on a dead mount: the file has a lease, which Linux revokes after 45 s.

    Its size and times can be read.
    """
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when another process waits for the file
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(file)
        signal.signal(signal.SIGIO, before)


KINDS = {
    "device": "is a device",
    "endless device": "is a device",
    "FIFO": "is a FIFO",
    "socket": "is a socket",
    "file of the kernel": "is in /proc or /sys",
    "link to a device": "is a device",
    "link to a FIFO": "is a FIFO",
    "broken link": "cannot be read: No such file",
    "nothing": "cannot be read: No such file",
    "circle": "cannot be read: Too many levels",
    "folder of all": "",
}
"""Kinds of paths, and the problem reported for each. The last can be read."""


def make(kind: str, folder: Path) -> str:
    """The path of something of this kind."""
    path = folder / kind.replace(" ", "-")
    match kind:
        case "device":
            return "/dev/null"
        case "endless device":
            return "/dev/zero"
        case "file of the kernel":
            return "/proc/self/environ"
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)  # a path too long to bind a socket at is no matter here
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "link to a FIFO":
            os.mkfifo(folder / "pipe")
            path.symlink_to("pipe")
        case "broken link":
            path.symlink_to("gone")
        case "circle":
            path.symlink_to(path.name)
        case "folder of all":
            path.mkdir()
            (path / "file").write_text("one")
            for other in KINDS:
                if other != kind and (made := make(other, path)).startswith("/dev"):
                    (path / f"to-{other}").symlink_to(made)
    return str(path)
