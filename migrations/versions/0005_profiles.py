"""What was measured of packs is looked for in the whole log, where another plan has the same trainer."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

PROFILES = sa.text("type = 'PackingProfiled'")


def upgrade() -> None:
    op.create_index("ix_events_profiles", "events", ["position"], sqlite_where=PROFILES, postgresql_where=PROFILES)


def downgrade() -> None:
    op.drop_index("ix_events_profiles", "events")
