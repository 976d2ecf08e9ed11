"""Files that are written completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"


@contextmanager
def atomic_file(path: Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """A file to write in the block, which gets its name when the block ends without an error.

    Creates its folder. buffering: as for `open`. Raises OSError.
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
    """Delete partial files that killed processes left. No process may be writing below the folder."""
    for path in folder.rglob(f"*{PARTIAL}"):
        path.unlink(missing_ok=True)
