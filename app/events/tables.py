"""The database's tables. Only `events` is the truth about studies; `slots` and `chains` say who may write now.

JSON is stored as text and not as `jsonb`, which would turn 1e22 into an integer and so change the names of equal
values. Times are Unix seconds by the database's clock. `events.at` and `studies.submitted_at` come with the event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import NoneType
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
    MetaData,
    String,
    Table,
    UniqueConstraint,
    select,
    text,
)

from app.events.row_types import ChainRecord, SlotRecord, StudyRecord, TokenRecord

ROWID = BigInteger().with_variant(Integer, "sqlite")

ACTIVE = "state NOT IN ('completed', 'failed', 'cancelled')"
"""A study that is not over. Written as text, so that the partial index serves the query."""

AUDITED = "audited IS NOT NULL"
PROFILES = "type IN ('PackingProfiled', 'RanksProfiled')"
LENT = "lent_to IS NOT NULL"

LIVE = "state IN ('ready', 'running', 'saving')"
"""A chain that is not over: its worker must renew the lease."""

metadata = MetaData()
required = partial(Column, nullable=False)

SCALARS: Mapping[Any, type[Any]] = {str: String, int: Integer, float: Float, bool: Boolean}


def columns_of(record: type, key: str, **options: Mapping[str, Any]) -> Iterator[Column[Any]]:
    """A column for each field of a record: text, a number, or else JSON. options: of columns."""
    for name, hint in get_type_hints(record).items():
        kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
        kind = SCALARS.get(kinds[0], JSON(none_as_null=True))
        yield Column(name, kind, **{"primary_key": name == key, "nullable": len(kinds) > 1, **options.get(name, {})})


EVENTS = Table(
    "events",
    metadata,
    Column("position", ROWID, primary_key=True, autoincrement=False),
    required("stream", String),
    required("version", Integer),
    required("type", String),
    required("schema_version", Integer),
    required("data", JSON),
    required("at", Float),
    Column("by", String),  # the principal who gave the command; NULL where no token was needed
    UniqueConstraint("stream", "version", name="uq_events_stream_version"),
    Index("ix_events_profiles", "position", sqlite_where=text(PROFILES)),
)

STREAMS = Table("streams", metadata, Column("stream", String, primary_key=True), required("version", Integer))
"""The version of each stream: an append moves it, so that of two writers at one version only one succeeds."""

HEAD = Table("log_head", metadata, Column("id", Integer, primary_key=True), required("position", ROWID))
"""One row, locked from the moment a position is taken to the commit: positions have no gaps, and commit order."""

KEYS = Table(
    "idempotency",
    metadata,
    Column("key", String, primary_key=True),
    required("fingerprint", String),
    required("stream", String),
    required("version", Integer),  # of the last event that was appended under the key
    required("count", Integer),  # of events
    required("at", Float),
)

ARCHIVE = Table(
    "archive",
    metadata,
    Column("stream", String, primary_key=True),
    required("version", Integer),
    required("events", LargeBinary),  # the rows of the stream, packed by `app.events.archive`
    required("at", Float),
)

INSTALLATION = Table(
    "installation",
    metadata,
    Column("id", Integer, primary_key=True),
    required("name", String),  # the first part of the keys of all checkpoints
    Column("paused_until", Float),  # no checkpoint is deleted before, because a backup is being made
)
"""One row."""

STUDIES = Table(
    "studies",
    metadata,
    *columns_of(StudyRecord, "id"),
    Index("ix_studies_submitted", "submitted_at", "id"),
    Index("ix_studies_active", "stream", sqlite_where=text(ACTIVE)),
    Index("ix_studies_audited", "stream", sqlite_where=text(AUDITED)),
)

TOKENS = Table("tokens", metadata, *columns_of(TokenRecord, "name", digest={"unique": True}))

SLOTS = Table(
    "slots",
    metadata,
    *columns_of(SlotRecord, "name", chain={"unique": True}),
    Index("ix_slots_lent", "lent_to", sqlite_where=text(LENT)),
)

CHAINS = Table(
    "chains",
    metadata,
    *columns_of(ChainRecord, "chain", members={"nullable": True}),
    Index("ix_chains_live", "lease_until", sqlite_where=text(LIVE)),
)

SCHEDULERS = Table(
    "schedulers",
    metadata,
    Column("owner", String, primary_key=True),
    required("host", String),
    required("pid", Integer),
    required("ticked_at", Float),
    Column("demand", JSON(none_as_null=True)),  # for slots, at the last tick
    Column("held_up", JSON(none_as_null=True)),  # the error of each study and plan that had one at the last tick
)
"""The processes that tick. If none has ticked recently, slots get no work."""

TRIAL_LOGS = Table(
    "trial_logs",
    metadata,
    Column("name", String, primary_key=True),  # see `app.events.trial_logs`
    Column("study", String, primary_key=True, index=True),
    Column("source", String, primary_key=True),  # the stage that wrote it
    Column("begin", BigInteger, primary_key=True, autoincrement=False),  # the first byte of the source in `data`
    required("end", BigInteger),
    required("data", LargeBinary),
    required("at", Float),
)

BUSY = (
    select(STUDIES.c.stream)
    .where(text(ACTIVE))
    .union(
        select(CHAINS.c.stream).where(text(LIVE)),
        select(STUDIES.c.stream).where(text(AUDITED)),
    )
)
"""The streams with a study that is not over, a chain under way, or an audit."""
