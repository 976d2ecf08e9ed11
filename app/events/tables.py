"""The tables. Only `events` is the truth about studies; `slots` and `chains` say who may write now.

JSON is kept as text, not as `jsonb`, which would turn 1e22 into an integer and so give an equal thing another name.
Times are Unix seconds by the database's clock, except `events.at` and `studies.submitted_at`, which come with the fact.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    UniqueConstraint,
    event,
    false,
    select,
    text,
)
from sqlmodel import Field, SQLModel

ROWID = BigInteger().with_variant(Integer, "sqlite")
ACTIVE = "state NOT IN ('completed', 'failed', 'cancelled')"
AUDITED = "audited IS NOT NULL"
"""A study that may still want something. Written out, so that the partial index serves the query."""

PROFILES = "type IN ('PackingProfiled', 'RanksProfiled')"
"""What was measured of packs and ranks: looked for in all streams."""

LENT = "lent_to IS NOT NULL"

LIVE = "state IN ('ready', 'running', 'saving')"
"""A chain that somebody must hear of before its lease runs out."""


class EventRow(SQLModel, table=True):
    """A fact. by: the principal whose command it comes from; None where no token was needed."""

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
    by: str | None = None


class InstallationRow(SQLModel, table=True):
    """One row: the name of this installation, with which the keys of its checkpoints begin.

    paused_until: no checkpoint is deleted before, since a backup is made.
    """

    __tablename__ = "installation"

    id: int = Field(primary_key=True)
    name: str
    paused_until: float | None = None


class StreamRow(SQLModel, table=True):
    """The head of one stream: appending moves it, so that of two writers at one version only one succeeds."""

    __tablename__ = "streams"

    stream: str = Field(primary_key=True)
    version: int


class ArchiveRow(SQLModel, table=True):
    """A plan that is out of the way: `events` are the rows of its stream, packed by `app.events.archive`."""

    __tablename__ = "archive"

    stream: str = Field(primary_key=True)
    version: int
    events: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    at: float


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


class StudyRow(SQLModel, table=True):
    """A study and how it stands. slots_due: its share of the slots, while others compete with it for them.

    audited: whether a user wants all that it shares proven, and that is not yet done; None where nobody does.
    begins: the weights that it begins from, as of `StudySubmitted`. project, owner: "" for none. tags: None for none.
    """

    __tablename__ = "studies"
    __table_args__ = (
        Index("ix_studies_submitted", "submitted_at", "id"),
        Index("ix_studies_active", "stream", sqlite_where=text(ACTIVE)),
        Index("ix_studies_audited", "stream", sqlite_where=text(AUDITED)),
    )

    id: str = Field(primary_key=True)
    stream: str
    name: str
    state: str
    submitted_at: float
    slots_due: float | None = None
    audited: bool | None = None
    begins: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    project: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    owner: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    tags: list[str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))


class TokenRow(SQLModel, table=True):
    """A principal and its token. digest: the SHA-256 of the token, which is stored nowhere. project: None for all."""

    __tablename__ = "tokens"

    name: str = Field(primary_key=True)
    digest: str = Field(unique=True)
    scope: str
    project: str | None = None
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None
    revoked_at: float | None = None


class SlotRow(SQLModel, table=True):
    """One GPU, or one CPU process, and the worker that has it.

    chain: what it was given. resident_model: the plan, node and step of the model it holds in memory. trainers: the
    version of each trainer that its worker loads. note: what it waits for, or why it is in quarantine. kind: of its
    device, the same for all that are alike; "" where its worker does not say. lent_to: the chain of another slot that
    trains on its device, too. emptied_for: the chain for which its worker has left the device. address: where workers
    of other machines reach it; "" where they do not.
    """

    __tablename__ = "slots"
    __table_args__ = (Index("ix_slots_lent", "lent_to", sqlite_where=text(LENT)),)

    name: str = Field(primary_key=True)
    owner: str
    device: str
    host: str
    pid: int
    seen_at: float
    chain: str | None = Field(default=None, unique=True)
    resident_model: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    trainers: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    note: str | None = None
    quarantined_until: float | None = None
    kind: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    lent_to: str | None = None
    emptied_for: str | None = None
    address: str = Field(default="", sa_column_kwargs={"server_default": text("''")})


class SchedulerRow(SQLModel, table=True):
    """A process that ticks. Where none did of late, nothing is given to slots. demand: for slots, at that tick.

    held_up: a sentence for each study and plan that an error held up then, by its name.
    """

    __tablename__ = "schedulers"

    owner: str = Field(primary_key=True)
    host: str
    pid: int
    ticked_at: float
    demand: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    held_up: dict[str, str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))


class ChainRow(SQLModel, table=True):
    """A chain and who may write for it; `state` is a `ChainState`.

    assignment: the JSON of a `ChainAssignment`. index: the stage under way. step: the last one known to be trained.
    extra_eval_steps: further steps at which to evaluate and keep. branch_steps, stop, preempt: as in `ChainFlags`.
    members: the slots that are lent to it, each with the owner that it had then; none where it has one alone.
    """

    __tablename__ = "chains"
    __table_args__ = (Index("ix_chains_live", "lease_until", sqlite_where=text(LIVE)),)

    chain: str = Field(primary_key=True)
    stream: str
    slot: str
    assignment: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    state: str
    fence: int
    owner: str | None = None
    lease_until: float
    index: int = 0
    step: int = 0
    extra_eval_steps: list[int] = Field(sa_column=Column(JSON, nullable=False))
    branch_steps: list[int] = Field(sa_column=Column(JSON, nullable=False))
    stop: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    preempt: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    dispatched_at: float
    members: dict[str, str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))


class TrialLogRow(SQLModel, table=True):
    """A part of what a stage printed or logged, where its slot's files are not to be seen from the API.

    name, study: as in `app.events.trial_logs`. source: the stage, as its slot had it. begin, end: the bytes of the
    source that it has; `data` is these, or says that they were left out.
    """

    __tablename__ = "trial_logs"

    name: str = Field(primary_key=True)
    study: str = Field(primary_key=True, index=True)
    source: str = Field(primary_key=True)
    begin: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    end: int = Field(sa_column=Column(BigInteger, nullable=False))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    at: float


metadata = SQLModel.metadata


@event.listens_for(metadata, "before_create")
def _narrow(target: Any, connection: Any, **_: Any) -> None:
    """In PostgreSQL, the same indexes are of some rows only. Said above, it would import that dialect for SQLite."""
    for table in target.tables.values() if connection.dialect.name == "postgresql" else ():
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


EVENTS, STREAMS, HEAD = (metadata.tables[name] for name in ("events", "streams", "log_head"))
KEYS, STUDIES, TOKENS = (metadata.tables[name] for name in ("idempotency", "studies", "tokens"))
ARCHIVE = metadata.tables["archive"]
INSTALLATION = metadata.tables["installation"]
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
"""The streams in which a study is not over, a chain is under way, or an audit is wanted."""
