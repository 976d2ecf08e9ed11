"""A chain may be told of trials that will branch off inside its stages and were not known when it began."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chains", sa.Column("branch_steps", sa.JSON()))


def downgrade() -> None:
    op.drop_column("chains", "branch_steps")
