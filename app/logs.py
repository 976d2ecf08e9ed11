"""Log files are bounded, and their lines look as `STAGETREE_LOG_FORMAT` says: text, or one JSON object a line.

Fields: `time`, `level`, `logger`, `message`, `error` with a traceback, and what the line is about where that is known:
`study`, `trial`, `stage`, `chain`, `fence`, `plan`, `slot`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pythonjsonlogger.json import JsonFormatter

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
HEAD_BYTES, TAIL_BYTES = 2**20, 16 * 2**20
"""A file with more than the most keeps its head and its tail: a loop that prints could fill the disk of the log."""


FIELDS = ("levelname", "name", "message")
RENAMED = {"levelname": "level", "name": "logger", "exc_info": "error", "timestamp": "time"}
CELERYS_OWN = ("data", "task_id", "task_name", "color_message")
"""What libraries add to their records, and no reader looks for."""


def write_json(loggers: Iterable[logging.Logger]) -> None:
    """Give what these loggers write, the form of JSON."""
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.setFormatter(json_lines())


def json_lines() -> JsonFormatter:
    """Times are in UTC, as ISO 8601."""
    from pythonjsonlogger.json import JsonFormatter  # slow to import, and seldom wanted

    skipped = [*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", *CELERYS_OWN]
    return JsonFormatter(FIELDS, rename_fields=RENAMED, timestamp=True, reserved_attrs=skipped)


def shorten(path: Path) -> None:
    """Leave out the middle of a file that is longer than the most. Its writers append, and go on."""
    try:
        if (size := path.stat().st_size) <= MOST_BYTES:
            return
        with path.open("r+b") as file:
            head = file.read(HEAD_BYTES)
            file.seek(size - TAIL_BYTES)
            tail = file.read().partition(b"\n")[2]
            left_out = size - len(head) - len(tail)
            file.seek(len(head))
            file.write(f"\n--- {left_out:,} bytes are left out: {MOST_BYTES:,} are kept at most\n".encode() + tail)
            file.truncate()
    except OSError as problem:
        logger.warning("%s is not shortened: %s", path, problem)
