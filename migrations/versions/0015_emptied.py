"""Slots say for which chain they have left the device that is lent to it."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slots", sa.Column("emptied_for", sa.String()))


def downgrade() -> None:
    op.drop_column("slots", "emptied_for")
