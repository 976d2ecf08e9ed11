"""A slot belongs to a process that proves it, a scheduler shows that it ticks, rows use the glossary's words.

What is in `slots` is of workers of the version before, which register anew. Snapshots cost more than they saved.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def required(name: str, kind: sa.types.TypeEngine, **more: object) -> sa.Column:
    return sa.Column(name, kind, nullable=False, **more)


def upgrade() -> None:
    op.drop_table("snapshots")
    op.drop_table("slots")
    create_slots()
    create_schedulers()
    for before, after in (("work", "assignment"), ("marks", "extra_eval_steps")):
        op.execute(f"ALTER TABLE chains RENAME COLUMN {before} TO {after}")
    for column in ("started_at", "beat_at"):
        op.drop_column("chains", column)


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
    )


def create_schedulers() -> None:
    op.create_table(
        "schedulers",
        sa.Column("owner", sa.String(), primary_key=True),
        required("host", sa.String()),
        required("pid", sa.Integer()),
        required("ticked_at", sa.Float()),
    )


def downgrade() -> None:
    op.drop_table("schedulers")
    op.drop_table("slots")
    op.create_table(
        "slots",
        sa.Column("name", sa.String(), primary_key=True),
        *(required(name, sa.String()) for name in ("device", "host")),
        required("pid", sa.Integer()),
        required("seen_at", sa.Float()),
        sa.Column("chain", sa.String(), unique=True),
        sa.Column("warm", sa.JSON()),
    )
    op.create_table(
        "snapshots",
        sa.Column("stream", sa.String(), primary_key=True),
        required("version", sa.Integer()),
        *(required(name, sa.String()) for name in ("code_version", "sha256")),
        required("state", sa.LargeBinary()),
    )
    for before, after in (("assignment", "work"), ("extra_eval_steps", "marks")):
        op.execute(f"ALTER TABLE chains RENAME COLUMN {before} TO {after}")
    op.add_column("chains", sa.Column("started_at", sa.Float()))
    op.add_column("chains", required("beat_at", sa.Float(), server_default="0"))
