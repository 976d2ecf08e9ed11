"""The log and the rows beside it, in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.events.memory.log import MemoryLog
from app.events.memory.rows import MemoryRows
from app.events.memory.tables import Tables


class MemoryRecords:
    """As `SqlRecords`, for one process. `clock`: what leases go by, in Unix seconds or in virtual ones."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._tables = Tables(clock)
        self._rows = MemoryRows(self._tables)
        self.log = MemoryLog(self._tables)

    @contextmanager
    def read(self) -> Iterator[MemoryRows]:
        with self._tables.lock:
            yield self._rows

    @contextmanager
    def write(self) -> Iterator[MemoryRows]:
        with self._tables.transaction():
            yield self._rows

    def close(self) -> None:
        """Nothing is open."""
