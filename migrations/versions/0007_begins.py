"""What weights a study begins from is listed."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("begins", sa.JSON()))


def downgrade() -> None:
    op.drop_column("studies", "begins")
