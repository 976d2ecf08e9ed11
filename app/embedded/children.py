"""What holds for every child process and what it writes: for this user alone, and no longer than its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

PRIVATE = 0o077
"""As a umask."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What is created in the block is for this user alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


def end_with_parent() -> None:
    """In a child: be killed when the parent dies, even by SIGKILL. Linux only; elsewhere nothing happens.

    Not SIGTERM, on which a worker would first end its stage.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
