"""Plans that are over may be archived."""

import json
import zlib

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

EVENT = "(position, stream, version, type, schema_version, data, at, by)"
VALUES = "(:position, :stream, :version, :type, :schema_version, {data}, :at, :by)"


def upgrade() -> None:
    op.create_table(
        "archive",
        sa.Column("stream", sa.String(), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
    )


def downgrade() -> None:
    """An earlier version does not look there: all are brought back."""
    connection = op.get_bind()
    data = "CAST(:data AS json)" if connection.dialect.name == "postgresql" else ":data"
    insert = sa.text(f"INSERT INTO events {EVENT} VALUES {VALUES.format(data=data)}")
    stream = sa.text("INSERT INTO streams (stream, version) VALUES (:stream, :version)")
    for row in connection.execute(sa.text("SELECT stream, version, events FROM archive")).all():
        connection.execute(stream, {"stream": row.stream, "version": row.version})
        for line in zlib.decompress(row.events).decode().split("\n"):
            event = json.loads(line)
            connection.execute(insert, {**event, "data": json.dumps(event["data"])})
    op.drop_table("archive")
