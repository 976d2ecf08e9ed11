"""Idempotency keys say whose they are: a client could name a key of a slot, whose facts were refused then."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A slot's key is its chain, of 32 characters, a colon, and numbers; workers of the version before may be at work.
    op.execute("UPDATE idempotency SET key = 'api:' || key WHERE substr(key, 33, 1) <> ':'")


def downgrade() -> None:
    op.execute("UPDATE idempotency SET key = substr(key, 5) WHERE key LIKE 'api:%'")
    op.execute("UPDATE idempotency SET key = substr(key, 6) WHERE key LIKE 'slot:%'")
