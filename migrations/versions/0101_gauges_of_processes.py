"""Memory and backlogs of workers, for `GET /metrics`."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slots", sa.Column("gauges", sa.JSON()))
    op.add_column("schedulers", sa.Column("memory_bytes", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("schedulers", "memory_bytes")
    op.drop_column("slots", "gauges")
