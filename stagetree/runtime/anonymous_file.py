"""Memory that processes hand to each other as a file descriptor."""

from __future__ import annotations

import os
import tempfile


def anonymous_file(size: int) -> int:
    """The descriptor of a new file in memory, or else of one on disk without a name. Raises OSError: no room."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("stagetree")
    else:
        fd, path = tempfile.mkstemp(prefix="stagetree-")
        os.unlink(path)
    try:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)  # without it, no room would be a SIGBUS while writing
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd
