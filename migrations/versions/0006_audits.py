"""A study that is over has something to do as long as it is audited."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

AUDITED = sa.text("audited IS NOT NULL")


def upgrade() -> None:
    op.add_column("studies", sa.Column("audited", sa.Boolean()))
    op.create_index("ix_studies_audited", "studies", ["stream"], sqlite_where=AUDITED, postgresql_where=AUDITED)


def downgrade() -> None:
    op.drop_index("ix_studies_audited", "studies")
    op.drop_column("studies", "audited")
