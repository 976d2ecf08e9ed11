"""Memory of this machine and of processes, and how the C library and the kernel treat it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from stagetree.system.files import mappings
from stagetree.system.processes import PROC

CGROUP = Path("/sys/fs/cgroup")
"""The limits of a container, as seen from inside it."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Constants of glibc's malloc.h."""

HUGE_PAGE = 2**21
MADV_COLLAPSE = 25

MAX_MOVED_BYTES = 2**29
"""The most to move: it takes a second a gigabyte."""


def total_bytes() -> int:
    """The memory of this machine, or the limit of the container that this process runs in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int((CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


def available_bytes() -> int:
    """The memory that processes of this machine and its container may still take; 0 if unknown."""
    with contextlib.suppress(OSError, StopIteration):
        lines = (PROC / "meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        return min([free, *_container_bytes()])
    return 0


def _container_bytes() -> Iterator[int]:
    """The memory left under the limit of this process's control group, if there is one."""
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        yield limit - used


def resident_bytes(pid: int) -> int:
    """The process's private memory, without shared memory such as checkpoints; 0 if unknown or if it has ended."""
    try:
        resident, shared = Path(PROC, str(pid), "statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def mapped_bytes() -> int:
    """The address space of this process. Raises OSError where that is unknown."""
    return int((PROC / "self" / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def take_peak_bytes() -> int:
    """The peak of this process's memory since the last call; 0 where it is not counted."""
    try:
        with open(PROC / "self" / "status") as status:
            kilobytes = next((line.split()[1] for line in status if line.startswith("VmHWM:")), "0")
        with open(PROC / "self" / "clear_refs", "w") as counters:
            counters.write("5")  # resets the peak: see proc(5)
    except OSError:
        return 0
    return int(kilobytes) * 1024


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step instead of returning it to the kernel.

    Otherwise a CPU slot may spend a tenth of its time on page faults (docs/decisions/0008-determinism.md). Nothing
    where the C library is not glibc.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 256 * 2**20)


LARGE_BLOCK = 2**20


def return_freed_memory() -> None:
    """Let the C library return large blocks to the kernel when they are freed, for a process that rarely needs one.

    By default, each thread has a heap of its own, and once a large block was freed, later ones of up to 32 MiB are
    taken from the heaps and stay there. Nothing where the C library is not glibc.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
        mallopt(M_ARENA_MAX, 1)


def gather_memory() -> None:
    """Move the process's private memory into large pages, if the system supports it.

    A fork copies the page tables. With small pages, a fork and its exit take 20 ms after importing torch; with large
    ones, half of that.
    """
    left = MAX_MOVED_BYTES
    with contextlib.suppress(OSError, AttributeError, ValueError, TypeError):
        libc = ctypes.CDLL(None)
        for begin, end in _own_areas():
            first, last = -(-begin // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if first < last and last - first <= left:
                left -= last - first
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _own_areas() -> Iterator[tuple[int, int]]:
    """The address ranges of writable memory that belongs to no file."""
    for line in mappings():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and rights[3] == "p" and inode == "0" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in place.split("-"))
            yield begin, end
