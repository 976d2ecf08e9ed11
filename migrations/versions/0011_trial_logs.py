"""What trainers print and log, of slots on any machine."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trial_logs",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("study", sa.String(), primary_key=True),
        sa.Column("source", sa.String(), primary_key=True),
        sa.Column("begin", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
    )
    op.create_index("ix_trial_logs_study", "trial_logs", ["study"])


def downgrade() -> None:
    op.drop_table("trial_logs")
