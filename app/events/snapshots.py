"""The newest snapshot of each stream, bytes made elsewhere. One that is damaged, or of other code, does not exist."""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import select

from app.events.database import Database, insert
from app.events.tables import SnapshotRow

SNAPSHOTS = SnapshotRow.__table__


def save(database: Database, stream: str, version: int, state: bytes, code_version: str) -> None:
    """Keep the state of `stream` at `version` in place of an older one. Raises `DatabaseUnavailable`."""
    content = {"version": version, "code_version": code_version, "sha256": sha256(state).hexdigest(), "state": state}
    with database.write() as session:
        row = insert(session, SNAPSHOTS).values(stream=stream, **content)
        newer = (SNAPSHOTS.c.version < version) | (SNAPSHOTS.c.code_version != code_version)
        session.execute(row.on_conflict_do_update(index_elements=["stream"], set_=content, where=newer))


def load(database: Database, stream: str, code_version: str) -> tuple[int, bytes] | None:
    """The version and the state last saved by the same code, whole. Raises `DatabaseUnavailable`."""
    wanted = (SNAPSHOTS.c.stream == stream, SNAPSHOTS.c.code_version == code_version)
    with database.read() as session:
        columns = (SNAPSHOTS.c.version, SNAPSHOTS.c.state, SNAPSHOTS.c.sha256)
        row = session.execute(select(*columns).where(*wanted)).one_or_none()
    if row is None or sha256(row.state).hexdigest() != row.sha256:
        return None
    return row.version, row.state
