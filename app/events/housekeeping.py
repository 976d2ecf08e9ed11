"""What operators and time remove: studies that are struck, people, and rows beside the log that serve nobody.

A strike is an event like any other, so each replay of the log comes to the same plan; but it is looked for before a
stream is folded (`EventLog.struck`), and what the study's trials asked for is not in the plan then. What was trained
for it stays on record with the nodes, for other studies that share them.

The log is append-only, so that it can be replayed and trusted. The right of people to be forgotten goes before that.
Names and notes decide nothing, so every replay comes to the same. A name becomes a pseudonym from which nothing leads
back, and all that one person did is still by one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sqlalchemy import ColumnElement, Table, delete, or_, select, update

from app.domain import events as e
from app.domain.terms import ChainId, ChainOutcome, ChainState, StudyId, Unknown
from app.events import archive
from app.events.database import Database, SqlSession
from app.events.log import VersionConflict
from app.events.records import Records
from app.events.rows import Fenced, StudyRecord
from app.events.rows.ports import RowsPort
from app.events.rows.values import now
from app.events.tables import CHAINS, EVENTS, KEYS, SCHEDULERS, SLOTS, STUDIES, TOKENS

BATCH = 1000
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Ages:
    """After how many days each kind of row goes: idempotency keys, chains that are over, workers that are gone."""

    keys: float = 7.0
    chains: float = 7.0
    workers: float = 1.0


AGES = Ages()


def clean(database: Database, ages: Ages = AGES) -> Mapping[str, int]:
    """Remove what is old enough; how many rows of each table. Raises `LostRace`, `DatabaseUnavailable`."""
    return {table.name: _clean(database, table, ages) for table in OLD}


def _clean(database: Database, table: Table, ages: Ages) -> int:
    (name,) = table.primary_key.columns
    total, last = 0, BATCH
    while last == BATCH:
        with database.write() as session:
            old = select(name).where(OLD[table](now(session), ages)).limit(BATCH)
            last = len(session.execute(delete(table).where(name.in_(old)).returning(name)).all())
        total += last
    return total


OLD: Mapping[Table, Callable[[ColumnElement[float], Ages], ColumnElement[bool]]] = {
    KEYS: lambda at, ages: KEYS.c.at < at - ages.keys * DAY,
    CHAINS: lambda at, ages: (
        CHAINS.c.state.in_([ChainState.DONE, ChainState.ENDED]) & (CHAINS.c.dispatched_at < at - ages.chains * DAY)
    ),
    SLOTS: lambda at, ages: SLOTS.c.chain.is_(None) & (SLOTS.c.seen_at < at - ages.workers * DAY),
    SCHEDULERS: lambda at, ages: SCHEDULERS.c.ticked_at < at - ages.workers * DAY,
}
"""Which rows of each table are old at a time."""


def strike(records: Records, study: str, reason: str, at: float, attempts: int = 10) -> bool:
    """Strike a study out, and end the chains that train for it; False if that was done before.

    Raises `Unknown`, `DatabaseUnavailable`, and `VersionConflict` where others were faster each time.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _strike(records, study, reason, at)
        except (VersionConflict, Fenced) as lost:  # a chain ended meanwhile
            if attempt == attempts:
                raise VersionConflict(str(lost)) from lost
    raise ValueError("A strike needs at least one attempt.")


def _strike(records: Records, study: str, reason: str, at: float) -> bool:
    row, chains = _found(records, study)
    if study in records.log.struck(row.stream):
        return False

    def end(rows: RowsPort) -> None:
        for chain in chains:
            rows.chains.end(chain)

    ended = [e.ChainEnded(chain=chain, outcome=ChainOutcome.STOPPED) for chain in chains]
    struck = e.StudyStruck(study=StudyId(study), reason=reason, at=at)
    records.log.append(row.stream, [*ended, struck], expected=None, at=at, alongside=end)
    return True


def _found(records: Records, study: str) -> tuple[StudyRecord, list[ChainId]]:
    """The study's row, and the live chains that have a stage for it."""
    with records.read() as rows:
        row = rows.studies.find(study)
        if row is None:
            raise Unknown(f"there is no study {study}")
        live = rows.chains.live(row.stream)
    for_it = [chain for chain in live if any(stage.study == study for stage in chain.stages)]
    return row, [ChainId(chain.chain) for chain in for_it]


ERASED_TEXT = "(erased)"
NAMING = (
    "StudySubmitted",
    "ConfigurationSuggested",
    "SuggestionWithdrawn",
    "TrialAdded",
    "NoteAdded",
    "NoteCorrected",
    "StudyLabelled",
)
"""Events that name a principal in what they say; all others only in whose command they come from."""

Json = dict[str, Any]


def erase_person(database: Database, name: str) -> tuple[str, int]:
    """Put a pseudonym in the place of a principal's name, wherever it stands, and revoke a token of that name.

    Returns the pseudonym, and of how many events it was the name. Raises `DatabaseUnavailable`, `LostRace`.
    """
    pseudonym = f"erased-{secrets.token_hex(6)}"

    def renamed(data: Json) -> Json:
        data = {**data, "by": pseudonym} if data.get("by") == name else data
        reason = data.get("reason")
        if isinstance(reason, dict) and reason.get("suggested_by") == name:
            data = {**data, "reason": {**reason, "suggested_by": pseudonym}}
        return data

    with _all_back(database), database.write() as session:
        events = session.execute(update(EVENTS).where(EVENTS.c.by == name).values(by=pseudonym)).rowcount
        named = _rewrite(session, NAMING, renamed)
        session.execute(update(STUDIES).where(STUDIES.c.owner == name).values(owner=pseudonym))
        session.execute(delete(TOKENS).where(TOKENS.c.name == name))
        key = f"api:{quote(name, safe='')}"
        session.execute(delete(KEYS).where(or_(KEYS.c.key == key, KEYS.c.key.startswith(f"{key}:", autoescape=True))))
    _forget_on_disk(database)
    return pseudonym, max(events, named)


def erase_notes(database: Database, study: str) -> int:
    """Take the text out of a study's notes; how many had one. Raises `DatabaseUnavailable`, `LostRace`."""

    def emptied(data: Json) -> Json:
        return {**data, "text": ERASED_TEXT} if data["study"] == study else data

    with _all_back(database), database.write() as session:
        count = _rewrite(session, ["NoteAdded", "NoteCorrected"], emptied)
    _forget_on_disk(database)
    return count


@contextmanager
def _all_back(database: Database) -> Iterator[None]:
    """Without an archive, and with it again afterwards. What interrupts this leaves plans outside of it: no harm."""
    streams = archive.archived(database)
    for stream in streams:
        archive.bring_back(database, stream)
    yield
    for stream in streams:
        archive.archive(database, stream, time.time())


def _rewrite(session: SqlSession, kinds: Sequence[str], change: Callable[[Json], Json]) -> int:
    """Change the data of all events of these kinds; how many are others now."""
    places = select(EVENTS.c.position, EVENTS.c.data).where(EVENTS.c.type.in_(kinds))
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
