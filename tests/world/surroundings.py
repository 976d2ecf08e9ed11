"""Where a simulated world is played."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from app.workers.slot import environment as module
from stagetree.runtime.reads import file_reads

environment = cache(module.environment)


@contextmanager
def folder_of_world() -> Iterator[Path]:
    """A folder in memory, where there is one, for a world that is played in the block.

    Git is called once a process for the trainers, and no hook records opened files: no rule needs that.
    """
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with (
        TemporaryDirectory(dir=shared) as folder,
        patch.object(module, "environment", environment),
        patch.object(file_reads, "watch", lambda: None),
    ):
        yield Path(folder)
