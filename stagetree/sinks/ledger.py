"""What a sink has written, line by line in a file: killed at any moment, it knows where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

from stagetree.sinks.base import Key, Mark, Record


class Ledger:
    """The records that were written, and the position of the last event that nothing more is to be written of.

    A line that the end of a process cut off is no line.
    """

    def __init__(self, path: Path) -> None:
        self.position = 0
        self.keys: set[Key] = set()
        self.marks: dict[int, Mark] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        self._read()

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self._take(*json.loads(line))
        self._file.truncate(whole)

    def _take(self, position: int, key: list[str | int] | None, mark: Mark) -> None:
        if key is None:
            self.position = position
        else:
            self.keys.add(tuple(key))
            self.marks[int(key[1])] = mark

    def wrote(self, position: int, record: Record, mark: Mark) -> None:
        """A record of the event at this position is written."""
        self._add(position, list(record.key), mark)

    def passed(self, position: int) -> None:
        """Nothing more is to be written of the events up to this position."""
        self._add(position, None, None)

    def _add(self, position: int, key: list[str | int] | None, mark: Mark) -> None:
        self._take(position, key, mark)
        self._file.write(json.dumps([position, key, mark]).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
