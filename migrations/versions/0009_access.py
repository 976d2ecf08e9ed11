"""Who may do what: tokens, whose studies are whose, and by whom a fact was asked for."""

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


def downgrade() -> None:
    op.drop_table("tokens")
    op.drop_column("events", "by")
    for name in reversed(STUDY_COLUMNS):
        op.drop_column("studies", name)
