"""Large pages for a process that forks often: for each fork, the kernel copies the tables of all its pages.

With small ones, that and the end of the fork take 20 ms for a process that has imported torch; with large ones, half.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HUGE = 2**21
MADV_COLLAPSE = 25

MOST_BYTES = 2**29
"""No more is moved: that takes a second for each gigabyte."""


def gather_memory() -> None:
    """Move the process's own memory into large pages, the heap and the areas beside it. Where the system has none, or
    does not do that, nothing changes."""
    libc, left = ctypes.CDLL(None), MOST_BYTES
    with suppress(OSError, AttributeError, ValueError):
        for begin, end in _own_areas():
            first, last = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
            if first < last and last - first <= left:
                left -= last - first
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _own_areas() -> Iterator[tuple[int, int]]:
    """Begin and end of each area of memory that is written and belongs to no file."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and rights[3] == "p" and inode == "0" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in place.split("-"))
            yield begin, end
