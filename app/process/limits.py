"""The memory that a process has and may have, and how long it may take to end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

EXIT_CODE = 70
"""Of a process that did not end in time."""

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The memory limit of a container, as seen from inside it."""


def end_within(seconds: float, on_timeout: Callable[[], None] = lambda: None) -> None:
    """Start a thread that ends this process if it is still running after `seconds`. Returns at once."""

    def wait() -> None:
        time.sleep(seconds)
        print(f"did not end within {seconds:g} s: exits now", file=sys.stderr, flush=True)
        on_timeout()
        os._exit(EXIT_CODE)

    Thread(target=wait, name="grace", daemon=True).start()


def total_memory() -> int:
    """The memory of this machine in bytes, or the limit of the container that this process runs in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


def resident_bytes(pid: int) -> int:
    """The process's private memory, without shared memory such as checkpoints; 0 if unknown or if it has ended."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
