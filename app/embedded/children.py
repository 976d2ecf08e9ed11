"""What holds for every child process and what it writes: for this user alone, and no longer than its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
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


@contextlib.contextmanager
def noting_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C interrupts nothing in the block, it is noted: what the block does is done whole."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others are not interrupted
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a child that leads a session, with all of it, and see it end.

    Not by `Popen.wait`: a Ctrl-C within an earlier call of it, or of `poll`, leaves its lock taken, and it would wait
    for ever.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with contextlib.suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def end_with_parent() -> None:
    """In a child: be killed when the parent dies, even by SIGKILL. Linux only; elsewhere nothing happens.

    Not SIGTERM, on which a worker would first end its stage.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
