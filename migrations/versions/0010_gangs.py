"""Slots say of which kind their device is, and to which chain they are lent; chains, which slots they have besides."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

PACKS = sa.text("type = 'PackingProfiled'")
PACKS_AND_RANKS = sa.text("type IN ('PackingProfiled', 'RanksProfiled')")
LENT = sa.text("lent_to IS NOT NULL")


def _index_profiles(which: sa.TextClause) -> None:
    op.drop_index("ix_events_profiles", "events")
    op.create_index("ix_events_profiles", "events", ["position"], sqlite_where=which, postgresql_where=which)


def upgrade() -> None:
    op.add_column("slots", sa.Column("kind", sa.String(), nullable=False, server_default=sa.text("''")))
    op.add_column("slots", sa.Column("lent_to", sa.String()))
    op.create_index("ix_slots_lent", "slots", ["lent_to"], sqlite_where=LENT, postgresql_where=LENT)
    op.add_column("chains", sa.Column("members", sa.JSON()))
    _index_profiles(PACKS_AND_RANKS)


def downgrade() -> None:
    _index_profiles(PACKS)
    op.drop_column("chains", "members")
    op.drop_index("ix_slots_lent", "slots")
    op.drop_column("slots", "lent_to")
    op.drop_column("slots", "kind")
