"""Tokens, the projects and owners of studies, the principals behind events, and the name of the installation."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STUDY_COLUMNS = ("project", "owner")


def upgrade() -> None:
    for name in STUDY_COLUMNS:
        op.add_column("studies", sa.Column(name, sa.String(), nullable=False, server_default=sa.text("''")))
    op.add_column("events", sa.Column("by", sa.String()))
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("digest", sa.String(), nullable=False, unique=True),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("project", sa.String()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.Column("used_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
    )
    installation = op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("paused_until", sa.Float()),
    )
    op.bulk_insert(installation, [{"id": 1, "name": uuid4().hex[:12]}])


def downgrade() -> None:
    op.drop_table("installation")
    op.drop_table("tokens")
    op.drop_column("events", "by")
    for name in reversed(STUDY_COLUMNS):
        op.drop_column("studies", name)
