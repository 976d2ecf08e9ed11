"""A chain may be asked to leave its slot to another study, and what is due to each of them is shown."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chains", sa.Column("preempt", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("studies", sa.Column("slots_due", sa.Float()))


def downgrade() -> None:
    op.drop_column("studies", "slots_due")
    op.drop_column("chains", "preempt")
