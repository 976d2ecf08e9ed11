"""A slot belongs to a process that proves it; rows use the words of the glossary; snapshots go."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("snapshots")
    op.execute("DELETE FROM slots")  # their workers are of the version before, and register anew
    op.execute("ALTER TABLE slots RENAME COLUMN warm TO resident_model")
    op.add_column("slots", sa.Column("owner", sa.String(), nullable=False, server_default=""))
    op.add_column("slots", sa.Column("trainers", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("slots", sa.Column("note", sa.String()))
    op.add_column("slots", sa.Column("quarantined_until", sa.Float()))
    op.execute("ALTER TABLE chains RENAME COLUMN work TO assignment")
    op.execute("ALTER TABLE chains RENAME COLUMN marks TO extra_eval_steps")
    op.drop_column("chains", "started_at")
    op.drop_column("chains", "beat_at")
