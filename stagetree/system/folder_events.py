"""Reports of the files that any program closes in a folder: inotify of Linux. Elsewhere there are none."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

CLOSED_WRITTEN, CLOSED_READ, ONLY_FOLDERS = 0x8, 0x10, 0x0100_0000
EVENT = struct.Struct("iIII")
"""Watch descriptor, mask, cookie, and the length of the name that follows."""


class FolderEvents:
    """Reports nothing where inotify is missing, or when the user's limit of watches is reached."""

    def __init__(self) -> None:
        self._libc: Any = None
        self._end = -1
        with suppress(AttributeError, OSError, TypeError):
            self._libc = ctypes.CDLL(None)
            self._end = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, folder: str) -> int:
        """The number of the folder in its events; below 0 where it cannot be watched."""
        if self._end < 0:
            return -1
        kinds = CLOSED_WRITTEN | CLOSED_READ | ONLY_FOLDERS
        return int(self._libc.inotify_add_watch(self._end, os.fsencode(folder), kinds))

    def closed(self) -> Iterator[tuple[int, bool, str]]:
        """The folder's number, whether the file was open for writing, and its name, for each file closed until now."""
        with suppress(OSError):  # no more events
            while self._end >= 0 and (events := os.read(self._end, 2**16)):
                begin = 0
                while begin < len(events):
                    number, what, _, length = EVENT.unpack_from(events, begin)
                    begin += EVENT.size + length
                    yield number, bool(what & CLOSED_WRITTEN), os.fsdecode(events[begin - length : begin].rstrip(b"\0"))

    def close(self) -> None:
        """Watch nothing from now on."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
