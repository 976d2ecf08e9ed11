"""Does something at a chosen line of what the thread that trains executes, as another thread or the system might."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from cluster import Cluster

import app.workers.slot

FOLDER = Path(app.workers.slot.__file__).parent
LOCKS = ("Lock(", "Condition(")
OTHERS = {"heartbeat.py"}
"""Files of another thread than the one that trains."""

FILES = {
    str(path)
    for path in FOLDER.glob("*.py")
    if path.name not in OTHERS and not any(lock in path.read_text() for lock in LOCKS)
}
"""Code at a line at which a lock is held would wait for it: those files are left out."""

Line = tuple[str, int]
"""A file of the slot, and the number of a line in it."""


@contextmanager
def trace_lines(cluster: Cluster, do: Callable[[Line, int], None], slot: str = "gpu0") -> Iterator[None]:
    """do: called with each line of the slot's that this thread is about to execute, and how often it came to it.

    Its errors are raised there. It is not called inside a transaction, which others would wait for.
    """
    seen, transactions = Counter[Line](), [0]
    records = cluster.slot_records[slot]
    read, write = records.read, records.write

    def count_transactions(
        begin: Callable[[], AbstractContextManager[Any]],
    ) -> Callable[[], AbstractContextManager[Any]]:
        @contextmanager
        def count_block() -> Iterator[Any]:
            transactions[0] += 1
            try:
                with begin() as rows:
                    yield rows
            finally:
                transactions[0] -= 1

        return count_block

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and not transactions[0]:
            line = (Path(frame.f_code.co_filename).name, frame.f_lineno)
            seen[line] += 1
            do(line, seen[line])
        return trace

    before = sys.gettrace()
    records.read, records.write = count_transactions(read), count_transactions(write)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        records.read, records.write = read, write
