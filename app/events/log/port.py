"""The port of event logs: each operation, its values, and the rows that follow from events in one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.domain import events as e
from app.domain.events import Event
from app.domain.terms import StudyId, StudyState
from app.events.rows import RowsPort, StudyRecord
from app.outages import LostRace

Alongside = Callable[[RowsPort], None]

PART = 5000
"""As many events are held at once where a whole stream is read."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event in its place: `position` among all events, `version` in its stream, both counted from 1.

    by: the principal whose command it comes from, if there is one.
    """

    position: int
    stream: str
    version: int
    event: Event
    at: float
    by: str | None = None


class VersionConflict(LostRace):
    """The stream is not at the expected version, or the transaction lost against another: decide again."""


class KeyReused(Exception):
    """The idempotency key came back with another request."""


class Gap(Exception):
    """An event is missing from the log, which means that the database was damaged."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A key under which something is appended once: it comes back with the same `fingerprint` or is refused."""

    key: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Events for one stream, all or none.

    expected: the version that the stream must be at (0: it is new; None: any). alongside: runs in the same transaction
    before anything is added, and what it raises aborts all; it runs for no events too. decide: says what the events
    are, once the stream is locked, given what came after version `expected`; nobody can be faster then.
    by: the principal who asked for it.
    """

    stream: str
    events: Sequence[Event] = ()
    expected: int | None = None
    at: float
    idempotency: Idempotency | None = None
    alongside: Alongside | None = None
    decide: Callable[[Sequence[StoredEvent]], Sequence[Event]] | None = None
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
        """As `write`, in short."""
        once = None if key is None else Idempotency(key, fingerprint)
        return self.write(
            Append(stream=stream, events=events, expected=expected, at=at, idempotency=once, alongside=alongside)
        )

    def scan(self, stream: str, *, after: int = 0) -> Iterator[StoredEvent]:
        """As `read`, however long the stream is: in parts, each when it is wanted."""
        while batch := self.read(stream, after=after, limit=PART):
            yield from batch
            after = batch[-1].version

    @abstractmethod
    def write(self, append: Append) -> list[StoredEvent]:
        """Add events to a stream, and return them as they were recorded.

        With an idempotency key that was used before, nothing is done and what was appended then is returned.
        Raises `VersionConflict`, `KeyReused` (same key, other fingerprint), `DatabaseUnavailable`, and
        `app.events.codec.Unwritable` before anything is written.
        """

    @abstractmethod
    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        """What was appended under `key`, or None. Raises `KeyReused`."""

    @abstractmethod
    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """The events of one stream after a version, in order. Raises `Gap` and `app.events.codec.UnknownEvent`."""

    @abstractmethod
    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        """Position and stream of each event after a position, in order: also of those that cannot be read here."""

    @abstractmethod
    def struck(self, stream: str) -> frozenset[StudyId]:
        """The studies of the stream that were struck: whoever folds it must know them beforehand."""

    @abstractmethod
    def profiles(self) -> list[StoredEvent]:
        """What was measured of packs, in all streams, in order; without what cannot be read here."""

    @abstractmethod
    def version(self, stream: str) -> int:
        """How many events the stream has."""

    @abstractmethod
    def head(self) -> int:
        """The last position."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """How many events each stream has, by name, sorted."""


@dataclass(frozen=True, slots=True)
class Used:
    """What an idempotency key stands for."""

    fingerprint: str
    stream: str
    version: int
    count: int

    def check(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise KeyReused("This idempotency key was used before, with another request.")


def placed(append: Append, events: Sequence[Event], position: int, version: int) -> list[StoredEvent]:
    """`events` in the places that follow `position` and `version`."""
    stream, at, by = append.stream, append.at, append.by
    return [StoredEvent(position + n, stream, version + n, event, at, by) for n, event in enumerate(events, 1)]


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
    """Take what was appended to `stream` into the rows of its studies."""
    for event in events:
        if isinstance(event, e.StudySubmitted):
            rows.studies.add(_submitted(stream, event))
        elif isinstance(event, e.StudyDeleted):
            rows.studies.remove(event.study)
        elif isinstance(event, e.AuditRequested | e.AuditEnded):
            rows.studies.set_audited(event.study, isinstance(event, e.AuditRequested))
        elif isinstance(event, e.StudyLabelled):
            rows.studies.set_tags(event.study, event.tags)
        elif (state := STATE_AFTER.get(type(event))) is not None:
            rows.studies.set_state(event.study, state)  # type: ignore[union-attr]


def _submitted(stream: str, event: e.StudySubmitted) -> StudyRecord:
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
