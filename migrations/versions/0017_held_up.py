"""The scheduler says which studies and plans an error holds up."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedulers", sa.Column("held_up", sa.JSON()))


def downgrade() -> None:
    op.drop_column("schedulers", "held_up")
