"""The tables. Only `events` is the truth about studies; `slots` and `chains` say who may write now.

JSON is kept as text, not as `jsonb`, which would turn 1e22 into an integer and so give an equal thing another name.
Times are Unix seconds by the database's clock, except `events.at` and `studies.submitted_at`, which come with the fact.
"""

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, LargeBinary, UniqueConstraint, false, text
from sqlmodel import Field, SQLModel

ROWID = BigInteger().with_variant(Integer, "sqlite")
ACTIVE = "state NOT IN ('completed', 'failed', 'cancelled')"
"""A study that may still want something. Written out, so that the partial index serves the query."""

LIVE = "state IN ('ready', 'running', 'saving')"
"""A chain that somebody must hear of before its lease runs out."""


class EventRow(SQLModel, table=True):
    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("stream", "version", name="uq_events_stream_version"),)

    position: int = Field(sa_column=Column(ROWID, primary_key=True, autoincrement=False))
    stream: str
    version: int
    type: str
    schema_version: int
    data: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    at: float


class StreamRow(SQLModel, table=True):
    """The head of one stream: appending moves it, so that of two writers at one version only one succeeds."""

    __tablename__ = "streams"

    stream: str = Field(primary_key=True)
    version: int


class HeadRow(SQLModel, table=True):
    """One row, locked from the moment a position is given to the commit: positions have no gaps and commit order."""

    __tablename__ = "log_head"

    id: int = Field(primary_key=True)
    position: int = Field(sa_column=Column(ROWID, nullable=False))


class KeyRow(SQLModel, table=True):
    """What was appended under an idempotency key: `count` events of `stream`, the last of them at `version`."""

    __tablename__ = "idempotency"

    key: str = Field(primary_key=True)
    fingerprint: str
    stream: str
    version: int
    count: int
    at: float


class SnapshotRow(SQLModel, table=True):
    __tablename__ = "snapshots"

    stream: str = Field(primary_key=True)
    version: int
    code_version: str
    sha256: str
    state: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class StudyRow(SQLModel, table=True):
    __tablename__ = "studies"
    __table_args__ = (
        Index("ix_studies_submitted", "submitted_at", "id"),
        Index("ix_studies_active", "stream", sqlite_where=text(ACTIVE), postgresql_where=text(ACTIVE)),
    )

    id: str = Field(primary_key=True)
    stream: str
    name: str
    state: str
    submitted_at: float


class SlotRow(SQLModel, table=True):
    """One GPU, or one CPU process: `chain` is what it was given, `warm` the model it holds in memory."""

    __tablename__ = "slots"

    name: str = Field(primary_key=True)
    device: str
    host: str
    pid: int
    seen_at: float
    chain: str | None = Field(default=None, unique=True)
    warm: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))


class ChainRow(SQLModel, table=True):
    """A chain and who may write for it. State: ready, running, saving (trained, its slot free), done; or ended early.

    `index` is the stage under way, `step` the last step done, `marks` further steps at which to evaluate and keep.
    """

    __tablename__ = "chains"
    __table_args__ = (Index("ix_chains_live", "lease_until", sqlite_where=text(LIVE), postgresql_where=text(LIVE)),)

    chain: str = Field(primary_key=True)
    stream: str
    slot: str
    work: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    state: str
    fence: int
    owner: str | None = None
    lease_until: float
    index: int = 0
    step: int = 0
    marks: list[int] = Field(sa_column=Column(JSON, nullable=False))
    stop: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    dispatched_at: float
    started_at: float | None = None
    beat_at: float


metadata = SQLModel.metadata
