"""The logs of a process. Files are bounded, and `STAGETREE_LOG_FORMAT` chooses text or one JSON object a line.

JSON fields: `time`, `level`, `logger`, `message`, `error` with a traceback, and the subject of the line where it is
known: `study`, `trial`, `stage`, `chain`, `fence`, `plan`, `slot`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pythonjsonlogger.json import JsonFormatter

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**20
HEAD_BYTES, TAIL_BYTES = 2**20, 16 * 2**20
"""A larger file keeps its head and its tail: a loop that prints could fill the disk of the event log."""

FIELDS = ("levelname", "name", "message")
JSON_NAMES = {"levelname": "level", "name": "logger", "exc_info": "error", "timestamp": "time"}
LIBRARY_FIELDS = ("data", "task_id", "task_name", "color_message")
"""Fields that Celery and uvicorn add to records, and no reader looks for."""


def write_json(loggers: Iterable[logging.Logger]) -> None:
    """Have the handlers of these loggers write JSON."""
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.setFormatter(json_formatter())


def json_formatter() -> JsonFormatter:
    """Times are in UTC, as ISO 8601."""
    from pythonjsonlogger.json import JsonFormatter  # slow to import, and seldom wanted

    skipped = [*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", *LIBRARY_FIELDS]
    return JsonFormatter(FIELDS, rename_fields=JSON_NAMES, timestamp=True, reserved_attrs=skipped)


def shorten(path: Path) -> None:
    """Cut the middle out of a log file that is larger than `MAX_BYTES`. Its writers append, and are not disturbed."""
    try:
        if (size := path.stat().st_size) <= MAX_BYTES:
            return
        with path.open("r+b") as file:
            head = file.read(HEAD_BYTES)
            file.seek(size - TAIL_BYTES)
            tail = file.read().partition(b"\n")[2]
            left_out = size - len(head) - len(tail)
            file.seek(len(head))
            file.write(f"\n--- {left_out:,} bytes are left out: {MAX_BYTES:,} are kept at most\n".encode() + tail)
            file.truncate()
    except OSError as problem:
        logger.warning("%s is not shortened: %s", path, problem)


def last_line(log: Path) -> str:
    """The last line of a log, to append to an error message after a colon; empty for an empty log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
