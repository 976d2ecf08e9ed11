"""The log and the rows in a file, for commands that look at a store and end.

To import SQLAlchemy and to declare the tables takes a quarter of a second, as long as such a command itself. So what a
list of studies or trials needs is read here with the driver alone. Everything else is `SqlRecords`', which is imported
when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from app.domain.chain_assignment import ChainAssignment
from app.domain.events import StudyStruck
from app.domain.evolve import struck_studies
from app.domain.terms import StudyId
from app.events.codec import decode, read_json
from app.events.log import Append, EventLog, StoredEvent, check_no_gap
from app.events.rows import LIVE, ChainRecord, RowsPort, SlotRecord, StudyRecord
from app.events.schema_numbers import check_schema_is_known
from app.events.sqlite import SQLITE, SQLITE_NOW
from app.outages import raise_outage

if TYPE_CHECKING:
    from app.events.sql_log import SqlRecords

PATIENCE_SECONDS = 20.0
EVENTS = "SELECT position, stream, version, type, schema_version, data, at, by FROM events WHERE stream = ?"
STUDIES, CHAINS = "SELECT * FROM studies", f"SELECT * FROM chains WHERE {LIVE}"

Row = dict[str, Any]


class FileRecords:
    """`Records` of a file. It must exist."""

    def __init__(self, file: Path) -> None:
        self.url, self._file = f"sqlite:///{file}", file
        self._idle: list[Any] = []  # connections
        self.log = FileLog(self)

    @cached_property
    def all(self) -> SqlRecords:
        """The same records with all operations."""
        from app.events.database import Database
        from app.events.sql_log import SqlRecords

        return SqlRecords(Database(self.url))

    def schema(self) -> str | None:
        """As `Database.schema`. Raises `UnreadableSchema` as well."""
        with self.transaction() as session:
            number = session.schema()
        check_schema_is_known(number, self.url)
        return number

    @contextmanager
    def read(self) -> Iterator[RowsPort]:
        with self.transaction() as session, ExitStack() as opened:
            rows = cache(lambda: opened.enter_context(self.all.read()))
            yield cast(RowsPort, _Rows(session, rows))

    def write(self) -> AbstractContextManager[RowsPort]:
        return self.all.write()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        if "all" in vars(self):
            self.all.close()

    @contextmanager
    def transaction(self) -> Iterator[_Session]:
        """A read-only transaction. Raises `DatabaseUnavailable`."""
        try:
            connection = self._idle.pop() if self._idle else self._connect()
            connection.execute("BEGIN")
            try:
                yield _Session(connection)
            finally:
                connection.execute("ROLLBACK")
                self._idle.append(connection)
        except SQLITE.Error as error:
            raise_outage(error, self.url)
            raise

    def _connect(self) -> Any:
        return SQLITE.connect(self._file, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)


class _Session:
    """A transaction on a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str, *given: Any) -> list[Row]:
        cursor = self._connection.execute(query, given)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def schema(self) -> str | None:
        if not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"):
            return None
        return next((str(row["version_num"]) for row in self.rows("SELECT version_num FROM alembic_version")), None)

    def now(self) -> float:
        return float(self.rows(f"SELECT {SQLITE_NOW} AS now")[0]["now"])

    def is_archived(self, stream: str) -> bool:
        return bool(self.rows("SELECT 1 FROM archive WHERE stream = ?", stream))


class FileLog(EventLog):
    """Reads events; an archived plan is unpacked, and all else done, by `FileRecords.all`."""

    def __init__(self, records: FileRecords) -> None:
        self._records = records

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        query = f"{EVENTS} AND version > ? ORDER BY version LIMIT ?"
        with self._records.transaction() as session:
            recorded = [
                _stored_event(row) for row in session.rows(query, stream, after, -1 if limit is None else limit)
            ]
            is_archived = not recorded and session.is_archived(stream)
        if is_archived:
            return self.all.read(stream, after=after, limit=limit)
        check_no_gap((each.version for each in recorded), after, f"Stream {stream}")
        return recorded

    def struck_studies(self, stream: str) -> frozenset[StudyId]:
        with self._records.transaction() as session:
            recorded = map(_stored_event, session.rows(f"{EVENTS} AND type = ?", stream, StudyStruck.__name__))
            struck = struck_studies(each.event for each in recorded)
            is_archived = not struck and session.is_archived(stream)
        return self.all.struck_studies(stream) if is_archived else struck

    def version(self, stream: str) -> int:
        with self._records.transaction() as session:
            found = session.rows("SELECT version FROM streams WHERE stream = ?", stream)
        return int(found[0]["version"]) if found else 0

    @property
    def all(self) -> EventLog:
        """The same log with all operations."""
        return self._records.all.log

    def write(self, append: Append) -> list[StoredEvent]:
        return self.all.write(append)

    def find_by_key(self, key: str, fingerprint: str = "") -> list[StoredEvent] | None:
        return self.all.find_by_key(key, fingerprint)

    def tail(self, *, after: int = 0, limit: int | None = None) -> list[tuple[int, str]]:
        return self.all.tail(after=after, limit=limit)

    def profiles(self) -> list[StoredEvent]:
        return self.all.profiles()

    def count_failures(self, after: int, until: int) -> dict[str, int]:
        return self.all.count_failures(after, until)

    def head(self) -> int:
        return self.all.head()

    def versions(self) -> dict[str, int]:
        return self.all.versions()


class _Part:
    """A part of the rows: what its subclass does not have is taken from `others`."""

    def __init__(self, session: _Session, others: Callable[[], Any]) -> None:
        self._session, self._others = session, others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others(), name)


class _Rows(_Part):
    def __init__(self, session: _Session, others: Callable[[], Any]) -> None:
        super().__init__(session, others)
        self.studies = _Studies(session, lambda: others().studies)
        self.chains = _Chains(session, lambda: others().chains)
        self.slots = _Slots(session, lambda: others().slots)
        self.schedulers = _Schedulers(session, lambda: others().schedulers)

    def now(self) -> float:
        return self._session.now()


class _Studies(_Part):
    def find(self, id: str) -> StudyRecord | None:
        return next(map(_study, self._session.rows(f"{STUDIES} WHERE id = ?", id)), None)

    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        order, where, given = "ORDER BY submitted_at DESC, id DESC LIMIT ?", "", list[Any]()
        if after is not None:
            where, given = "WHERE (submitted_at, id) < (SELECT submitted_at, id FROM studies WHERE id = ?)", [after]
        return [*map(_study, self._session.rows(f"{STUDIES} {where} {order}", *given, limit))]


class _Chains(_Part):
    def live(self, stream: str | None = None) -> Sequence[ChainRecord]:
        found = self._session.rows(f"{CHAINS} AND ? IN (stream, '') ORDER BY chain", stream or "")
        return [*map(_chain, found)]


class _Slots(_Part):
    def all(self) -> list[SlotRecord]:
        return [_make(SlotRecord, row) for row in self._session.rows("SELECT * FROM slots ORDER BY name")]

    def alive(self, seen_within: float) -> list[SlotRecord]:
        now = self._session.now()
        return [slot for slot in self.all() if slot.was_seen(now, seen_within)]


class _Schedulers(_Part):
    def last_report(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        query = "SELECT demand, held_up FROM schedulers ORDER BY ticked_at DESC LIMIT 1"
        found = [read_json(each or "null") for row in self._session.rows(query) for each in row.values()]
        demand, held_up = found or (None, None)
        return demand, held_up or {}


def _stored_event(row: Row) -> StoredEvent:
    event = decode(row["type"], row["schema_version"], read_json(row["data"]))
    return StoredEvent(row["position"], row["stream"], row["version"], event, row["at"], row["by"])


def _make(record: Any, row: Row, **fields: Any) -> Any:
    """The record in a row. Values of other types than text and numbers are JSON: see `app.events.tables.columns_of`."""
    hints = {name: get_args(hint) if NoneType in get_args(hint) else (hint,) for name, hint in _hints(record).items()}
    return record(
        **{name: _value(hints[name][0], value) for name, value in row.items() if name not in fields}, **fields
    )


@cache
def _hints(record: Any) -> dict[str, Any]:
    return get_type_hints(record)


def _value(kind: Any, value: Any) -> Any:
    if value is None or kind in (str, int, float):
        return value
    return bool(value) if kind is bool else read_json(value)


def _study(row: Row) -> StudyRecord:
    return cast(StudyRecord, _make(StudyRecord, row))


def _chain(row: Row) -> ChainRecord:
    lists = {name: tuple(read_json(row[name])) for name in ("extra_eval_steps", "branch_steps")}
    assignment, members = read_json(row["assignment"]), read_json(row["members"] or "{}") or {}
    made = _make(ChainRecord, row, **lists, assignment=ChainAssignment.from_json(assignment), members=members)
    return cast(ChainRecord, made)
