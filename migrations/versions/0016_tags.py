"""Studies have tags."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("tags", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("studies", "tags")
