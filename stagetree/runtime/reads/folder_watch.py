"""Records data files that are read in the folders that a process lists, also by C libraries.

A C library such as OpenCV or Arrow opens and closes files without Python. Python does see which folders are listed,
which most programs do for data sets of single files, and inotify reports when a file in them is closed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from stagetree.system.folder_events import FolderEvents

DATA = re.compile(
    r"\.(arrow|avi|bin|bmp|csv|feather|flac|gif|gz|h5|hdf5|jpe?g|jsonl|mat|mp3|mp4|npy|npz|ogg|orc|parquet|png|ppm)"
    r"|\.(tar|tfrecord|tiff?|tsv|txt|wav|webp|zip|zst)",
    re.IGNORECASE,
)
"""Endings of data files. Other programs may read other files in a listed folder."""

MAX_FOLDERS = 512


class FolderWatch:
    """Reports nothing where the system does not report it: see `FolderEvents`."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._events = FolderEvents()

    def add(self, folder: str) -> None:
        if len(self._folders) < MAX_FOLDERS:
            number = self._events.watch(folder)
            if number >= 0:
                self._folders[number] = folder

    def closed_files(self) -> Iterator[tuple[bool, str]]:
        """Yield the data files that were closed, and whether each was open for writing; then stop watching."""
        for number, is_written, name in self._events.closed():
            if number in self._folders and DATA.fullmatch(os.path.splitext(name)[1]):
                yield is_written, f"{self._folders[number].rstrip('/')}/{name}"
        self._events.close()

    def renew(self) -> None:
        """Watch the same folders anew, in a fork that continues as a process of its own."""
        self._events.close()
        folders, self._folders = list(self._folders.values()), {}
        self._events = FolderEvents()
        for folder in folders:
            self.add(folder)
