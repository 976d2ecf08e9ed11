"""The log: events in one order without gaps, which is the order in which they were committed.

A database sequence does not give that order: a reader may see position 8 before 7 is committed, and miss 7. There the
position comes from one row, `log_head`, which stays locked until the commit. Locks are always taken in one order: key,
rows of `alongside`, stream, head. The head comes last, so that it is held for the shortest time.

Here are the interface of event logs, its values, and the study rows that follow from events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.domain import events as e
from app.domain.events import Event
from app.domain.terms import StateConflict, StudyId, StudyState
from app.events.rows import RowsPort, StudyRecord
from app.outages import LostRace

Alongside = Callable[[RowsPort], None]

SCAN_BATCH = 5000
"""How many events `scan` holds at once."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its position."""

    position: int
    """Among all events, from 1."""
    stream: str
    version: int
    """In its stream, from 1."""
    event: Event
    at: float
    by: str | None = None
    """The principal who gave the command, if there is one."""


class Archived(StateConflict):
    """A write to an archived plan."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"Plan {stream} is archived: bring it back with `stagetree archive --back STUDY`.")


class VersionConflict(LostRace):
    """The stream is not at the expected version, or the transaction lost against another one: decide again."""


class KeyReused(Exception):
    """The idempotency key was used with another request."""


class Gap(Exception):
    """An event is missing from the log: the database was damaged."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A key under which something is appended once. The same key with another `fingerprint` is refused."""

    key: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Events for one stream, all or none."""

    stream: str
    events: Sequence[Event] = ()
    expected: int | None = None
    """The version that the stream must be at; 0: it is new; None: any."""
    at: float
    idempotency: Idempotency | None = None
    alongside: Alongside | None = None
    """Runs in the same transaction before anything is appended, even for no events. If it raises, all is aborted."""
    decide: Callable[[Sequence[StoredEvent]], Sequence[Event]] | None = None
    """Returns the events, once the stream is locked, given the events after version `expected`. A shorter stream is a
    conflict: it has lost events.
    """
    by: str | None = None


class EventLog(ABC):
    """Safe to share between threads and processes. A stream that was never written is empty, at version 0."""

    def append(
        self,
        stream: str,
        events: Sequence[Event],
        *,
        expected: int | None,
        at: float,
        key: str | None = None,
        fingerprint: str = "",
        alongside: Alongside | None = None,
    ) -> list[StoredEvent]:
        """As `write`, with the fields of `Append` as arguments."""
        once = None if key is None else Idempotency(key, fingerprint)
        return self.write(
            Append(stream=stream, events=events, expected=expected, at=at, idempotency=once, alongside=alongside)
        )

    def scan(self, stream: str, *, after: int = 0) -> Iterator[StoredEvent]:
        """As `read`, for streams of any length: events are read in batches, on demand."""
        while batch := self.read(stream, after=after, limit=SCAN_BATCH):
            yield from batch
            after = batch[-1].version

    @abstractmethod
    def write(self, append: Append) -> list[StoredEvent]:
        """Append events to a stream; returns them as recorded.

        With an idempotency key that was used before, nothing is written, and the earlier events are returned. Raises
        `VersionConflict`, `KeyReused`, `DatabaseUnavailable`, and `app.events.codec.Unwritable` before anything is
        written.
        """

    @abstractmethod
    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        """The events that were appended under `key`, or None. Raises `KeyReused`."""

    @abstractmethod
    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """The events of one stream after a version, in order. Raises `Gap` and `app.events.codec.UnknownEvent`."""

    @abstractmethod
    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        """Position and stream of each event after a position, in order. Includes events that this version cannot
        read.
        """

    @abstractmethod
    def struck_studies(self, stream: str) -> frozenset[StudyId]:
        """The struck studies of the stream, to be read before it is folded."""

    @abstractmethod
    def profiles(self) -> list[StoredEvent]:
        """The measurements of packs and ranks in all streams, in order, except events that this version cannot read."""

    @abstractmethod
    def count_failures(self, after: int, until: int) -> dict[str, int]:
        """How many stages failed, by `FailureKind`, and how many chains ended by accident, by `ChainOutcome`: in the
        events after one position and up to another.
        """

    @abstractmethod
    def version(self, stream: str) -> int: ...

    @abstractmethod
    def head(self) -> int:
        """The last position."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """The version of each stream, sorted by name."""


@dataclass(frozen=True, slots=True)
class Used:
    """The use of an idempotency key."""

    fingerprint: str
    stream: str
    version: int
    count: int

    def check(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise KeyReused("This idempotency key was used before, with another request.")


def assign_positions(append: Append, events: Sequence[Event], position: int, version: int) -> list[StoredEvent]:
    """The events at the places that follow `position` and `version`."""
    stream, at, by = append.stream, append.at, append.by
    return [StoredEvent(position + n, stream, version + n, event, at, by) for n, event in enumerate(events, 1)]


def check_no_gap(numbers: Iterable[int], after: int, stream: str) -> None:
    """Raises `Gap` unless the numbers follow `after` one by one. stream: what they number."""
    for expected, number in enumerate(numbers, after + 1):
        if number != expected:
            raise Gap(f"{stream} has no event number {expected}: the next one is {number}.")


def check_not_shorter(append: Append, version: int) -> None:
    """Raise `VersionConflict` if the stream has lost events that were read for this decision."""
    if version < (append.expected or 0):
        raise VersionConflict(f"Stream {append.stream} is at version {version}, before {append.expected}.")


STATE_AFTER: dict[type[e.Event], StudyState] = {
    e.StudyPaused: StudyState.PAUSED,
    e.StudyResumed: StudyState.RUNNING,
    e.StudyReopened: StudyState.RUNNING,
    e.StudyCancelled: StudyState.CANCELLED,
    e.StudyCompleted: StudyState.COMPLETED,
    e.StudyFailed: StudyState.FAILED,
    e.StudyStruck: StudyState.FAILED,
}


def project(rows: RowsPort, stream: str, events: Sequence[e.Event]) -> None:
    """Update the rows of a stream's studies from appended events."""
    for event in events:
        if isinstance(event, e.StudySubmitted):
            rows.studies.add(_study_record(stream, event))
        elif isinstance(event, e.StudyDeleted):
            rows.studies.remove(event.study)
        elif isinstance(event, e.AuditRequested | e.AuditEnded):
            rows.studies.set_audited(event.study, isinstance(event, e.AuditRequested))
        elif isinstance(event, e.StudyLabelled):
            rows.studies.set_tags(event.study, event.tags)
        elif (state := STATE_AFTER.get(type(event))) is not None:
            rows.studies.set_state(event.study, state)  # type: ignore[union-attr]


def _study_record(stream: str, event: e.StudySubmitted) -> StudyRecord:
    return StudyRecord(
        id=event.study,
        stream=stream,
        name=event.spec["name"],
        state=StudyState.RUNNING,
        submitted_at=event.at,
        begins=event.begin,
        project=event.project,
        owner=event.by,
    )
