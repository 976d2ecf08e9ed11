"""The schema of release 0.1.0: the log, what guards it, and the rows beside it.

Numbers below 0100 belong to unreleased versions, whose databases are refused.
"""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

ROWID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
PROFILES = "type IN ('PackingProfiled', 'RanksProfiled')"
ACTIVE = "state NOT IN ('completed', 'failed', 'cancelled')"
LIVE = "state IN ('ready', 'running', 'saving')"


def required(name: str, kind: sa.types.TypeEngine, **more: object) -> sa.Column:
    return sa.Column(name, kind, nullable=False, **more)


def partial_index(name: str, table: str, column: str, where: str) -> None:
    op.create_index(name, table, [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    create_log()
    create_installation()
    create_studies()
    create_slots()
    create_chains()
    create_trial_logs()


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
        sa.Column("by", sa.String()),
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
    )
    partial_index("ix_events_profiles", "events", "position", PROFILES)
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
    op.create_table(
        "archive",
        sa.Column("stream", sa.String(), primary_key=True),
        required("version", sa.Integer()),
        required("events", sa.LargeBinary()),
        required("at", sa.Float()),
    )


def create_installation() -> None:
    installation = op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), primary_key=True),
        required("name", sa.String()),
        sa.Column("paused_until", sa.Float()),
    )
    op.bulk_insert(installation, [{"id": 1, "name": uuid4().hex[:12]}])
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(), primary_key=True),
        required("digest", sa.String(), unique=True),
        required("scope", sa.String()),
        sa.Column("project", sa.String()),
        required("created_at", sa.Float()),
        sa.Column("expires_at", sa.Float()),
        sa.Column("used_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
    )


def create_studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(), primary_key=True),
        required("stream", sa.String()),
        required("name", sa.String()),
        required("state", sa.String()),
        required("submitted_at", sa.Float()),
        sa.Column("slots_due", sa.Float()),
        sa.Column("audited", sa.Boolean()),
        sa.Column("begins", sa.JSON()),
        required("project", sa.String()),
        required("owner", sa.String()),
        sa.Column("tags", sa.JSON()),
    )
    op.create_index("ix_studies_submitted", "studies", ["submitted_at", "id"])
    partial_index("ix_studies_active", "studies", "stream", ACTIVE)
    partial_index("ix_studies_audited", "studies", "stream", "audited IS NOT NULL")


def create_slots() -> None:
    op.create_table(
        "slots",
        sa.Column("name", sa.String(), primary_key=True),
        required("owner", sa.String()),
        required("device", sa.String()),
        required("host", sa.String()),
        required("pid", sa.Integer()),
        required("seen_at", sa.Float()),
        sa.Column("chain", sa.String(), unique=True),
        sa.Column("resident_model", sa.JSON()),
        required("trainers", sa.JSON()),
        sa.Column("note", sa.String()),
        sa.Column("quarantined_until", sa.Float()),
        required("kind", sa.String()),
        sa.Column("lent_to", sa.String()),
        sa.Column("emptied_for", sa.String()),
        required("address", sa.String()),
    )
    partial_index("ix_slots_lent", "slots", "lent_to", "lent_to IS NOT NULL")
    op.create_table(
        "schedulers",
        sa.Column("owner", sa.String(), primary_key=True),
        required("host", sa.String()),
        required("pid", sa.Integer()),
        required("ticked_at", sa.Float()),
        sa.Column("demand", sa.JSON()),
        sa.Column("held_up", sa.JSON()),
    )


def create_chains() -> None:
    op.create_table(
        "chains",
        sa.Column("chain", sa.String(), primary_key=True),
        required("stream", sa.String()),
        required("slot", sa.String()),
        required("assignment", sa.JSON()),
        required("state", sa.String()),
        required("fence", sa.Integer()),
        sa.Column("owner", sa.String()),
        required("lease_until", sa.Float()),
        required("index", sa.Integer()),
        required("step", sa.Integer()),
        required("extra_eval_steps", sa.JSON()),
        required("branch_steps", sa.JSON()),
        required("stop", sa.Boolean()),
        required("preempt", sa.Boolean()),
        required("dispatched_at", sa.Float()),
        sa.Column("members", sa.JSON()),
    )
    partial_index("ix_chains_live", "chains", "lease_until", LIVE)


def create_trial_logs() -> None:
    op.create_table(
        "trial_logs",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("study", sa.String(), primary_key=True),
        sa.Column("source", sa.String(), primary_key=True),
        sa.Column("begin", sa.BigInteger(), primary_key=True, autoincrement=False),
        required("end", sa.BigInteger()),
        required("data", sa.LargeBinary()),
        required("at", sa.Float()),
    )
    op.create_index("ix_trial_logs_study", "trial_logs", ["study"])


def downgrade() -> None:
    rows = ("trial_logs", "chains", "schedulers", "slots", "studies", "tokens", "installation")
    for table in (*rows, "archive", "idempotency", "log_head", "streams", "events"):
        op.drop_table(table)
