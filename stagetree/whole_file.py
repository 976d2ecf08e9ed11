"""Files that are there whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


@contextmanager
def whole_file(path: Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """A file to be written in the block, which has its name only when the block is left without an error.

    Its folder is made where it is missing. buffering: as `open` takes it. Raises OSError.
    """
    partial = path.with_name(path.name + PARTIAL)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb", buffering=buffering) as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Delete what was broken off by the end of a process. For those who know that nobody writes below the folder."""
    for path in folder.rglob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)
