"""How an append looks in SQL: move the stream, move the head, put the events in the places between.

On PostgreSQL that is one statement, so that the locks are held for one round trip and the commit; SQLite, which has no
round trips, cannot say it in one. The text is fixed: building statements anew each time halves the appends a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, TextClause, text

Encoded = tuple[str, int, str]
"""The type name, the schema version and the JSON text of an event."""

MOVES = {
    "any": "INSERT INTO streams (stream, version) VALUES (:stream, :count)"
    " ON CONFLICT (stream) DO UPDATE SET version = streams.version + :count RETURNING version",
    "new": "INSERT INTO streams (stream, version) VALUES (:stream, :count)"
    " ON CONFLICT (stream) DO NOTHING RETURNING version",
    "at": "UPDATE streams SET version = version + :count WHERE stream = :stream AND version = :expected"
    " RETURNING version",
}
"""The stream's new version, from any version, from none, or from the expected one."""

COLUMNS = "stream, version, position, type, schema_version, data, at, by"

MOVE_STREAM = {how: text(move) for how, move in MOVES.items()}
MOVE_HEAD = text("UPDATE log_head SET position = position + :count WHERE id = 1 RETURNING position")
INSERT = text(
    f"INSERT INTO events ({COLUMNS}) VALUES (:stream, :version, :position, :type, :schema_version, :data, :at, :by)"
)


def put(
    connection: Connection, stream: str, expected: int | None, encoded: Sequence[Encoded], at: float, by: str | None
) -> tuple[int, int] | None:
    """Append to the stream, and return the position and version of the last event; None if it is not at `expected`.

    The rows of stream and head stay locked until the commit.
    """
    how = "any" if expected is None else "at" if expected else "new"
    to = {"stream": stream, "count": len(encoded), "expected": expected, "at": at, "by": by}
    on = _at_once if connection.dialect.name == "postgresql" else _one_by_one
    return on(connection, how, to, encoded)


def _one_by_one(
    connection: Connection, how: str, to: dict[str, Any], encoded: Sequence[Encoded]
) -> tuple[int, int] | None:
    version = connection.scalar(MOVE_STREAM[how], to)
    if version is None:
        return None
    position, count = connection.scalar(MOVE_HEAD, to), len(encoded)
    rows = [
        to
        | {"version": version - count + n, "position": position - count + n}
        | {"type": type, "schema_version": schema_version, "data": data}
        for n, (type, schema_version, data) in enumerate(encoded, 1)
    ]
    connection.execute(INSERT, rows)
    return position, version


def _whole(move: str) -> TextClause:
    """The head waits for the stream: what is not at the expected version takes no position."""
    return text(
        f"WITH moved AS ({move}),"
        " head AS (UPDATE log_head SET position = position + :count FROM moved WHERE id = 1"
        "  RETURNING position, moved.version)"
        f" INSERT INTO events ({COLUMNS})"
        " SELECT :stream, head.version - :count + n, head.position - :count + n, type, schema_version, data, :at,"
        "  CAST(:by AS text)"
        " FROM head, unnest(CAST(:types AS text[]), CAST(:schema_versions AS int[]), CAST(:datas AS json[]))"
        "  WITH ORDINALITY AS event (type, schema_version, data, n)"
        " RETURNING position, version"
    )


WHOLE = {how: _whole(move) for how, move in MOVES.items()}


def _at_once(
    connection: Connection, how: str, to: dict[str, Any], encoded: Sequence[Encoded]
) -> tuple[int, int] | None:
    types, schema_versions, datas = (list(column) for column in zip(*encoded, strict=True))
    events = {"types": types, "schema_versions": schema_versions, "datas": datas}
    places = connection.execute(WHOLE[how], to | events).all()
    return tuple(max(places)) if places else None
