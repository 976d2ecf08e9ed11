"""The scheduler says how many more slots would be busy."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedulers", sa.Column("demand", sa.JSON()))


def downgrade() -> None:
    op.drop_column("schedulers", "demand")
