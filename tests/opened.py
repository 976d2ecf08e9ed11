"""The open files of this process, to compare before and after.

The names, not their sizes: other threads, such as a store client's, may close files meanwhile.
"""

from __future__ import annotations

import os
from contextlib import suppress

File = tuple[int, int, int]
"""Descriptor, device and number."""


def open_files() -> set[File]:
    found = set[File]()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile, like the folder itself
            file = os.fstat(int(name))
            found.add((int(name), file.st_dev, file.st_ino))
    return found


def opened_states() -> set[File]:
    """The states of models in memory. Linux only."""
    return {file for file in open_files() if "memfd:stagetree" in _name(file)}


def _name(file: File) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file[0]}")
    except OSError:  # closed meanwhile
        return ""
