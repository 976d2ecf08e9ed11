"""How many reports of its worker each chain has on record, which shows a worker that the database has lost some.

Chains under way begin with none: their workers are of the earlier release, and show no count.
"""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chains", sa.Column("reports", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("chains", "reports")
