"""What a sink has written, line by line in a file: killed at any moment, it knows where it was."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO

from stagetree.sinks.base import Key, Mark, Record, Run, SinkError

_BEYOND = 2**62
"""The position of what is written when all events are."""


def path_in(folder: Path, study: str) -> Path:
    """The file, of one study, in the folder where a sink notes what it has written."""
    return folder / f"{study}.positions.jsonl"


def completed_at(path: Path) -> float | None:
    """When the study was over whose end was the last that is noted in a file; None where more was to come."""
    if not path.is_file():
        return None
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    position, key, at = json.loads(whole.splitlines()[-1]) if whole else (0, None, None)
    return at if position == _BEYOND and key is None else None


class Ledger:
    """The records that were written, and the position of the last event with nothing left to write.

    A line that the end of a process cut off is no line. One process at a time has it open. Raises `SinkError`.
    """

    def __init__(self, path: Path) -> None:
        self.position = 0
        self.keys: set[Key] = set()
        self.marks: dict[Run, Mark] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise SinkError(f"{path.parent}: another process writes there what this study measures") from None
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
        if key is not None:
            self.keys.add(tuple(key))
            self.marks[key[1]] = mark
        elif position != _BEYOND:
            self.position = position

    def wrote(self, position: int, record: Record, mark: Mark) -> None:
        """A record of the event at this position is written."""
        self._add(position, list(record.key), mark)

    def wrote_at_end(self, record: Record, mark: Mark) -> None:
        """A record is written that follows from all events."""
        self._add(_BEYOND, list(record.key), mark)

    def passed(self, position: int) -> None:
        """The events up to this position are written."""
        self._add(position, None, None)

    def completed(self, at: float) -> None:
        """All is written of the study, which was over at this time."""
        self._add(_BEYOND, None, at)

    def _add(self, position: int, key: list[str | int] | None, mark: Mark) -> None:
        self._take(position, key, mark)
        self._file.write(json.dumps([position, key, mark]).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
