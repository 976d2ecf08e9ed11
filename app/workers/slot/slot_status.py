"""The sentence in a slot's row: the reason why it waits, or its problem.

Runs on: any thread.
"""

from __future__ import annotations

from threading import Lock


class SlotStatus:
    """At most one note of each source. Thread-safe."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._lock = Lock()

    def put(self, source: str, text: str) -> None:
        with self._lock:
            self._notes[source] = text

    def remove(self, source: str) -> None:
        with self._lock:
            self._notes.pop(source, None)

    @property
    def text(self) -> str | None:
        with self._lock:
            return "; ".join(self._notes[source] for source in sorted(self._notes)) or None
