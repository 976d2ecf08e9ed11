"""Where a trainer's process writes what was logged between evaluations: rows in a file, never facts."""

from __future__ import annotations

import json
import os
import sys
import time

from stagetree.runtime.model import Model

DRAIN_SECONDS = 1.0
"""How often what was logged is fetched from the device; after each step, if steps are longer."""

MOST_BYTES = 2**24
"""Of one file; nothing is added to one that is longer."""


class Journal:
    """Appends a row for each time that it is drained. A file that cannot be written costs rows, and no training.

    drained_at: when that was last, by the monotonic clock.
    """

    def __init__(self) -> None:
        self._file = -1
        self.drained_at = time.monotonic()

    def write_to(self, file: int) -> None:
        """From here on, rows go there; the descriptor is the journal's to close."""
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def look(self, model: Model, now: float) -> None:
        """Write what was logged, if the last time is long enough ago. Raises `TrainerFailed`."""
        if now - self.drained_at >= DRAIN_SECONDS:
            self.write(model, now)

    def write(self, model: Model, now: float) -> None:
        """Write what was logged since the last time. Raises `TrainerFailed`."""
        self.drained_at = now
        if metrics := model.logged():
            self._append({"step": model.step, "metrics": metrics})

    def _append(self, row: dict[str, object]) -> None:
        if self._file < 0:
            return
        try:
            if os.fstat(self._file).st_size < MOST_BYTES:
                os.write(self._file, json.dumps(row).encode() + b"\n")
        except OSError as problem:
            print(f"--- what is logged is not kept: {problem}", file=sys.stderr)


def print_to(fd: int) -> None:
    """From here on, what this process prints goes to that file, which is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
