"""Records data files that are read in the folders that a process lists, also by C libraries.

A C library such as OpenCV or Arrow opens and closes files without Python. Python does see which folders are listed,
which most programs do for data sets of single files, and inotify reports when a file in them is closed.
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
"""Endings of data files. Other programs may read other files in a listed folder."""

MAX_FOLDERS = 512

CLOSED_WRITTEN, CLOSED_READ, ONLY_FOLDERS = 0x8, 0x10, 0x0100_0000
EVENT = struct.Struct("iIII")
"""Watch descriptor, mask, cookie, and the length of the name that follows."""


class FolderWatch:
    """Reports nothing outside of Linux, or when the user's limit of watches is reached."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._end = -1
        with suppress(AttributeError):
            self._libc = ctypes.CDLL(None)
            self._begin()

    def _begin(self) -> None:
        self._end = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, folder: str) -> None:
        if self._end >= 0 and len(self._folders) < MAX_FOLDERS:
            what = CLOSED_WRITTEN | CLOSED_READ | ONLY_FOLDERS
            number = self._libc.inotify_add_watch(self._end, os.fsencode(folder), what)
            if number >= 0:
                self._folders[number] = folder

    def closed_files(self) -> Iterator[tuple[bool, str]]:
        """Yield the data files that were closed, and whether each was open for writing; then stop watching."""
        with suppress(OSError):  # no more events
            while self._end >= 0 and (events := os.read(self._end, 2**16)):
                yield from self._parse_events(events)
        self._close()

    def renew(self) -> None:
        """Watch the same folders anew, in a fork that continues as a process of its own."""
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

    def _parse_events(self, events: bytes) -> Iterator[tuple[bool, str]]:
        begin = 0
        while begin < len(events):
            number, what, _, length = EVENT.unpack_from(events, begin)
            begin += EVENT.size + length
            name = os.fsdecode(events[begin - length : begin].rstrip(b"\0"))
            if number in self._folders and DATA.fullmatch(os.path.splitext(name)[1]):
                yield bool(what & CLOSED_WRITTEN), f"{self._folders[number].rstrip('/')}/{name}"
