"""Which data files are read in folders that a process lists, by Python or by a library.

A library in C, such as OpenCV or Arrow, opens a file and closes it, and Python never knows. It knows which folders are
listed, as most programs do with a data set of single files, and Linux tells when a file in one is closed (inotify).
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress

DATA = re.compile(
    r"\.(arrow|avi|bin|bmp|csv|feather|flac|gif|gz|h5|hdf5|jpe?g|jsonl|mat|mp3|mp4|npy|npz|ogg|orc|parquet|png|ppm)"
    r"|\.(tar|tfrecord|tiff?|tsv|txt|wav|webp|zip|zst)",
    re.IGNORECASE,
)
"""How data files end. Others in a listed folder may be read by another program."""

MOST_FOLDERS = 512

CLOSED_WRITTEN, CLOSED_READ, ONLY_FOLDERS = 0x8, 0x10, 0x0100_0000
EVENT = struct.Struct("iIII")
"""Which folder, what happened, a number, and the length of the name that follows."""


class FolderWatch:
    """Sees nothing where the system is not Linux, or lets the user watch no more."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._end = -1
        with suppress(AttributeError):
            self._libc = ctypes.CDLL(None)
            self._begin()

    def _begin(self) -> None:
        self._end = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, folder: str) -> None:
        if self._end >= 0 and len(self._folders) < MOST_FOLDERS:
            what = CLOSED_WRITTEN | CLOSED_READ | ONLY_FOLDERS
            number = self._libc.inotify_add_watch(self._end, os.fsencode(folder), what)
            if number >= 0:
                self._folders[number] = folder

    def closed(self) -> Iterator[tuple[bool, str]]:
        """The data files that were closed, and whether each had been open to be written. Nothing is seen after it."""
        with suppress(OSError):  # there is no more
            while self._end >= 0 and (events := os.read(self._end, 2**16)):
                yield from self._named(events)
        self._close()

    def renew(self) -> None:
        """See from now on what happens in the same folders, apart from the process that this one is a fork of."""
        self._close()
        folders, self._folders = list(self._folders.values()), {}
        with suppress(AttributeError):
            self._begin()
        for folder in folders:
            self.add(folder)

    def _close(self) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def _named(self, events: bytes) -> Iterator[tuple[bool, str]]:
        begin = 0
        while begin < len(events):
            number, what, _, length = EVENT.unpack_from(events, begin)
            begin += EVENT.size + length
            name = os.fsdecode(events[begin - length : begin].rstrip(b"\0"))
            if number in self._folders and DATA.fullmatch(os.path.splitext(name)[1]):
                yield bool(what & CLOSED_WRITTEN), f"{self._folders[number].rstrip('/')}/{name}"
