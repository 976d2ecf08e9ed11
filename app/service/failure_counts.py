"""Counts failures for Prometheus: from when this server first looked, as its counters begin anew with each process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock

from app.domain.terms import FAILURES
from app.events import EventLog


class FailureCounts:
    """Reads each event of the log once. Safe to share between threads."""

    def __init__(self, log: EventLog) -> None:
        self._log, self._lock = log, Lock()
        self._position: int | None = None
        self._counts = Counter[str]()

    def look(self) -> Mapping[str, int]:
        """How often each kind has happened by now. Raises `DatabaseUnavailable`, `LostRace`."""
        with self._lock:
            head = self._log.head()
            if self._position is not None:
                self._counts.update(self._log.count_failures(self._position, head))
            self._position = head
            return {str(kind): self._counts[kind] for kind in FAILURES}
