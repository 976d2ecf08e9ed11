"""Notices that the log has lost events which this process has read.

A primary may fail over to a replica without its last commits, or an older backup may take its place. What a process
remembers is a fold over the log, and it is wrong from there on. Positions have no gaps and commits are lost from the
end, so the newest event in memory stands for all of them. It counts as an outage, after which all is read anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from app.events.log import EventLog, StoredEvent
from app.outages import DatabaseUnavailable


class LostCommits(DatabaseUnavailable):
    """The log has lost events that this process has read. All memory of them is dropped: try again."""

    def __init__(self, lost: StoredEvent) -> None:
        at = datetime.fromtimestamp(lost.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        super().__init__(
            f"the database has lost its last commits: event {lost.version} of plan {lost.stream}, recorded at {at}, is"
            " not in the log any more; later steps are trained again, and later requests of users must be sent again."
        )


def read_after(log: EventLog, stream: str, last: StoredEvent | None, limit: int) -> list[StoredEvent]:
    """The events after `last`, in the same query as `last` itself. Raises `LostCommits`, and as `EventLog.read`."""
    if last is None:
        return log.read(stream, limit=limit)
    found = log.read(stream, after=last.version - 1, limit=limit + 1)
    check_is_first(last, found)
    return found[1:]


def check_is_first(last: StoredEvent, found: Sequence[StoredEvent]) -> None:
    """Raise `LostCommits` unless `last` comes first. Names and notes in it may have been erased."""
    if not found or (found[0].position, found[0].at) != (last.position, last.at):
        raise LostCommits(last)
