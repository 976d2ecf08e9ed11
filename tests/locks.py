"""Several processes run these tests at once."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """A lock between processes, by a file."""
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
