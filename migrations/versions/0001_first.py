"""The first schema: the log, what guards it, and the rows beside it."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROWID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ACTIVE = sa.text("state NOT IN ('completed', 'failed', 'cancelled')")
LIVE = sa.text("state IN ('ready', 'running', 'saving')")


def required(name: str, kind: sa.types.TypeEngine, **more: object) -> sa.Column:
    return sa.Column(name, kind, nullable=False, **more)


def upgrade() -> None:
    create_log()
    create_rows()
    create_leases()


def create_log() -> None:
    op.create_table(
        "events",
        sa.Column("position", ROWID, primary_key=True, autoincrement=False),
        required("stream", sa.String()),
        required("version", sa.Integer()),
        required("type", sa.String()),
        required("schema_version", sa.Integer()),
        required("data", sa.JSON()),
        required("at", sa.Float()),
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
    )
    op.create_table("streams", sa.Column("stream", sa.String(), primary_key=True), required("version", sa.Integer()))
    head = op.create_table("log_head", sa.Column("id", sa.Integer(), primary_key=True), required("position", ROWID))
    op.bulk_insert(head, [{"id": 1, "position": 0}])
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(), primary_key=True),
        required("fingerprint", sa.String()),
        required("stream", sa.String()),
        required("version", sa.Integer()),
        required("count", sa.Integer()),
        required("at", sa.Float()),
    )


def create_rows() -> None:
    op.create_table(
        "snapshots",
        sa.Column("stream", sa.String(), primary_key=True),
        required("version", sa.Integer()),
        required("code_version", sa.String()),
        required("sha256", sa.String()),
        required("state", sa.LargeBinary()),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.String(), primary_key=True),
        required("stream", sa.String()),
        required("name", sa.String()),
        required("state", sa.String()),
        required("submitted_at", sa.Float()),
    )
    op.create_index("ix_studies_submitted", "studies", ["submitted_at", "id"])
    op.create_index("ix_studies_active", "studies", ["stream"], sqlite_where=ACTIVE, postgresql_where=ACTIVE)


def create_leases() -> None:
    op.create_table(
        "slots",
        sa.Column("name", sa.String(), primary_key=True),
        required("device", sa.String()),
        required("host", sa.String()),
        required("pid", sa.Integer()),
        required("seen_at", sa.Float()),
        sa.Column("chain", sa.String(), unique=True),
        sa.Column("warm", sa.JSON()),
    )
    op.create_table(
        "chains",
        sa.Column("chain", sa.String(), primary_key=True),
        required("stream", sa.String()),
        required("slot", sa.String()),
        required("work", sa.JSON()),
        required("state", sa.String()),
        required("fence", sa.Integer()),
        sa.Column("owner", sa.String()),
        required("lease_until", sa.Float()),
        required("index", sa.Integer()),
        required("step", sa.Integer()),
        required("marks", sa.JSON()),
        required("stop", sa.Boolean(), server_default=sa.false()),
        required("dispatched_at", sa.Float()),
        sa.Column("started_at", sa.Float()),
        required("beat_at", sa.Float()),
    )
    op.create_index("ix_chains_live", "chains", ["lease_until"], sqlite_where=LIVE, postgresql_where=LIVE)


def downgrade() -> None:
    for table in ("chains", "slots", "studies", "snapshots", "idempotency", "log_head", "streams", "events"):
        op.drop_table(table)
