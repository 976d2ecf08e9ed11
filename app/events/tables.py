"""The database's tables. Only `events` is the truth about studies; `slots` and `chains` say who may write now.

JSON is stored as text and not as `jsonb`, which would turn 1e22 into an integer and so change the names of equal
values. Times are Unix seconds by the database's clock. `events.at` and `studies.submitted_at` come with the event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, new_class
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    String,
    UniqueConstraint,
    select,
    text,
)
from sqlmodel import Field, SQLModel

from app.events.rows import LIVE, ChainRecord, SlotRecord, StudyRecord, TokenRecord

ROWID = BigInteger().with_variant(Integer, "sqlite")

ACTIVE = "state NOT IN ('completed', 'failed', 'cancelled')"
"""A study that is not over. Written as text, so that the partial index serves the query."""

AUDITED = "audited IS NOT NULL"
PROFILES = "type IN ('PackingProfiled', 'RanksProfiled')"
LENT = "lent_to IS NOT NULL"


class EventRow(SQLModel, table=True):
    """An event."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("stream", "version", name="uq_events_stream_version"),
        Index("ix_events_profiles", "position", sqlite_where=text(PROFILES)),
    )

    position: int = Field(sa_column=Column(ROWID, primary_key=True, autoincrement=False))
    stream: str
    version: int
    type: str
    schema_version: int
    data: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    at: float
    by: str | None = None  # the principal that gave the command; NULL if no token was needed


class StreamRow(SQLModel, table=True):
    """The version of a stream: an append moves it, so that of two writers at one version only one succeeds."""

    __tablename__ = "streams"

    stream: str = Field(primary_key=True)
    version: int


class HeadRow(SQLModel, table=True):
    """One row, locked from the moment a position is taken to the commit: positions have no gaps, and commit order."""

    __tablename__ = "log_head"

    id: int = Field(primary_key=True)
    position: int = Field(sa_column=Column(ROWID, nullable=False))


class KeyRow(SQLModel, table=True):
    """The events appended under an idempotency key."""

    __tablename__ = "idempotency"

    key: str = Field(primary_key=True)
    fingerprint: str
    stream: str
    version: int  # of the last event that was appended under the key
    count: int  # of events
    at: float


class ArchiveRow(SQLModel, table=True):
    """The events of an archived stream."""

    __tablename__ = "archive"

    stream: str = Field(primary_key=True)
    version: int
    events: bytes = Field(sa_column=Column(LargeBinary, nullable=False))  # packed by `app.events.archive`
    at: float


class InstallationRow(SQLModel, table=True):
    """One row."""

    __tablename__ = "installation"

    id: int = Field(primary_key=True)
    name: str  # the first part of the keys of all checkpoints
    paused_until: float | None = None  # no checkpoint is deleted before, because a backup is being made


class SchedulerRow(SQLModel, table=True):
    """A process that ticks. If none has ticked recently, slots get no work."""

    __tablename__ = "schedulers"

    owner: str = Field(primary_key=True)
    host: str
    pid: int
    ticked_at: float
    demand: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))  # for slots
    held_up: dict[str, str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """The error of each study and plan that had one at the last tick."""
    memory_bytes: int | None = Field(default=None, sa_column=Column(BigInteger))


class TrialLogRow(SQLModel, table=True):
    """A part of what a stage printed or logged, if the API cannot read the slot's files."""

    __tablename__ = "trial_logs"

    name: str = Field(primary_key=True)  # see `app.events.trial_logs`
    study: str = Field(primary_key=True, index=True)
    source: str = Field(primary_key=True)  # the stage that wrote it
    begin: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """The first byte of the source in `data`."""
    end: int = Field(sa_column=Column(BigInteger, nullable=False))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    at: float


SCALARS: Mapping[Any, type[Any]] = {str: String, int: Integer, float: Float, bool: Boolean}


def columns_of(record: type, key: str, **options: Mapping[str, Any]) -> Iterator[Column[Any]]:
    """A column for each field of a record: text, a number, or else JSON. options: of columns."""
    for name, hint in get_type_hints(record).items():
        kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
        kind = SCALARS.get(kinds[0], JSON(none_as_null=True))
        yield Column(name, kind, **{"primary_key": name == key, "nullable": len(kinds) > 1, **options.get(name, {})})


def table_of(record: type, name: str, key: str, *arguments: Any, **options: Mapping[str, Any]) -> type[SQLModel]:
    """A table with the fields of a record, which the rows in memory share."""
    fields = {column.name: Field(sa_column=column) for column in columns_of(record, key, **options)}
    names = {"__module__": __name__, "__tablename__": name, "__table_args__": arguments}
    body = {**names, "__annotations__": get_type_hints(record), **fields}
    return new_class(record.__name__.replace("Record", "Row"), (SQLModel,), {"table": True}, lambda it: it.update(body))


StudyRow = table_of(
    StudyRecord,
    "studies",
    "id",
    Index("ix_studies_submitted", "submitted_at", "id"),
    Index("ix_studies_active", "stream", sqlite_where=text(ACTIVE)),
    Index("ix_studies_audited", "stream", sqlite_where=text(AUDITED)),
)
TokenRow = table_of(TokenRecord, "tokens", "name", digest={"unique": True}, writes={"server_default": "0"})
SlotRow = table_of(
    SlotRecord, "slots", "name", Index("ix_slots_lent", "lent_to", sqlite_where=text(LENT)), chain={"unique": True}
)
ChainRow = table_of(
    ChainRecord,
    "chains",
    "chain",
    Index("ix_chains_live", "lease_until", sqlite_where=text(LIVE)),
    members={"nullable": True},
    reports={"server_default": "0"},
)

metadata = SQLModel.metadata


EVENTS, STREAMS, HEAD = (metadata.tables[name] for name in ("events", "streams", "log_head"))
KEYS, STUDIES, TOKENS = (metadata.tables[name] for name in ("idempotency", "studies", "tokens"))
ARCHIVE, INSTALLATION = (metadata.tables[name] for name in ("archive", "installation"))
SLOTS, CHAINS, SCHEDULERS = (metadata.tables[name] for name in ("slots", "chains", "schedulers"))
TRIAL_LOGS = metadata.tables["trial_logs"]

BUSY = (
    select(STUDIES.c.stream)
    .where(text(ACTIVE))
    .union(
        select(CHAINS.c.stream).where(text(LIVE)),
        select(STUDIES.c.stream).where(text(AUDITED)),
    )
)
"""The streams with a study that is not over, a chain under way, or an audit."""
