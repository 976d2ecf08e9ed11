"""Erasing people from the log: their names, and the text of notes.

The log is append-only, so that it can be replayed and trusted. The right of people to be forgotten goes before that.
Names and notes decide nothing, so every replay comes to the same. A name becomes a pseudonym from which nothing leads
back, and all that one person did is still by one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import quote

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from app.events.database import Database
from app.events.tables import EVENTS, KEYS, STUDIES, TOKENS

ERASED_TEXT = "(erased)"
Json = dict[str, Any]


def erase_person(database: Database, name: str) -> tuple[str, int]:
    """Put a pseudonym in the place of a principal's name, wherever it stands, and revoke a token of that name.

    Returns the pseudonym, and of how many events it was the name. Raises `DatabaseUnavailable`, `LostRace`.
    """
    pseudonym = f"erased-{secrets.token_hex(6)}"

    def renamed(data: Json) -> Json:
        return {**data, "by": pseudonym} if data.get("by") == name else data

    with database.write() as session:
        asked = session.execute(update(EVENTS).where(EVENTS.c.by == name).values(by=pseudonym)).rowcount  # type: ignore[attr-defined]
        owned = _rewrite(session, "StudySubmitted", renamed)
        session.execute(update(STUDIES).where(STUDIES.c.owner == name).values(owner=pseudonym))
        session.execute(delete(TOKENS).where(TOKENS.c.name == name))
        key = f"api:{quote(name, safe='')}"
        session.execute(delete(KEYS).where(or_(KEYS.c.key == key, KEYS.c.key.startswith(f"{key}:", autoescape=True))))
    _forget_on_disk(database)
    return pseudonym, max(asked, owned)


def erase_notes(database: Database, study: str) -> int:
    """Take the text out of a study's notes; how many had one. Raises `DatabaseUnavailable`, `LostRace`."""

    def emptied(data: Json) -> Json:
        return {**data, "text": ERASED_TEXT} if data["study"] == study else data

    with database.write() as session:
        count = _rewrite(session, "NoteAdded", emptied)
    _forget_on_disk(database)
    return count


def _rewrite(session: Session, kind: str, change: Callable[[Json], Json]) -> int:
    """Change the data of all events of a kind; how many are others now."""
    places = select(EVENTS.c.position, EVENTS.c.data).where(EVENTS.c.type == kind)
    changed = [(position, after) for position, data in session.execute(places) if (after := change(data)) != data]
    for position, data in changed:
        session.execute(update(EVENTS).where(EVENTS.c.position == position).values(data=data))
    return len(changed)


def _forget_on_disk(database: Database) -> None:
    """SQLite keeps what was overwritten in free pages, and in the write-ahead log, until it is told not to."""
    if database.engine.dialect.name != "sqlite":
        return
    with closing(database.engine.raw_connection()) as connection:  # no transaction is begun on it
        connection.cursor().execute("VACUUM")
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
