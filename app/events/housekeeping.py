"""Deletes old rows, strikes studies, and erases people's names.

Striking appends an event, so that every replay gives the same plan. Readers ask for the struck studies of a stream
before they fold it (`EventLog.struck_studies`), and leave out what those studies' trials asked for. Results that were
trained for a struck study stay with the nodes, because other studies may share them.

The log is append-only, so that it can be replayed and trusted. The right to be forgotten takes precedence. No decision
depends on names and notes, so erasing them changes no replay. A name becomes a random pseudonym, and all that one
person did keeps one author.
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
from app.events.rows import Fenced, RowsPort, StudyRecord
from app.events.tables import CHAINS, EVENTS, KEYS, SCHEDULERS, SLOTS, STUDIES, TOKENS

BATCH = 1000
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Ages:
    """Days after which rows are deleted."""

    keys: float = 7.0
    """Idempotency keys."""
    chains: float = 7.0
    """Chains that are over."""
    workers: float = 1.0
    """Slots and schedulers whose process is gone."""


AGES = Ages()


def clean(database: Database, ages: Ages = AGES) -> Mapping[str, int]:
    """Delete old rows; returns their number by table. Raises `LostRace`, `DatabaseUnavailable`."""
    return {table.name: _clean(database, table, ages) for table in EXPIRED}


def _clean(database: Database, table: Table, ages: Ages) -> int:
    (name,) = table.primary_key.columns
    total, last = 0, BATCH
    while last == BATCH:
        with database.write() as session:
            old = select(name).where(EXPIRED[table](session.now, ages)).limit(BATCH)
            last = len(session.execute(delete(table).where(name.in_(old)).returning(name)).all())
        total += last
    return total


EXPIRED: Mapping[Table, Callable[[ColumnElement[float], Ages], ColumnElement[bool]]] = {
    KEYS: lambda at, ages: KEYS.c.at < at - ages.keys * DAY,
    CHAINS: lambda at, ages: (
        CHAINS.c.state.in_([ChainState.DONE, ChainState.ENDED]) & (CHAINS.c.dispatched_at < at - ages.chains * DAY)
    ),
    SLOTS: lambda at, ages: SLOTS.c.chain.is_(None) & (SLOTS.c.seen_at < at - ages.workers * DAY),
    SCHEDULERS: lambda at, ages: SCHEDULERS.c.ticked_at < at - ages.workers * DAY,
}
"""For each table, a condition on rows that are old at a given time."""


def strike(records: Records, study: str, reason: str, at: float, attempts: int = 10) -> bool:
    """Strike a study and end the chains that train for it; False if it was struck before.

    Raises `Unknown`, `DatabaseUnavailable`, and `VersionConflict` if it lost every race.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _strike(records, study, reason, at)
        except (VersionConflict, Fenced) as lost:  # a chain ended meanwhile
            if attempt == attempts:
                raise VersionConflict(str(lost)) from lost
    raise ValueError("A strike needs at least one attempt.")


def _strike(records: Records, study: str, reason: str, at: float) -> bool:
    row, chains = _find_study(records, study)
    if study in records.log.struck_studies(row.stream):
        return False

    def end(rows: RowsPort) -> None:
        for chain in chains:
            rows.chains.end(chain)

    ended = [e.ChainEnded(chain=chain, outcome=ChainOutcome.STOPPED) for chain in chains]
    struck = e.StudyStruck(study=StudyId(study), reason=reason, at=at)
    records.log.append(row.stream, [*ended, struck], expected=None, at=at, alongside=end)
    return True


def _find_study(records: Records, study: str) -> tuple[StudyRecord, list[ChainId]]:
    """The study's row, and the live chains with a stage for it."""
    with records.read() as rows:
        row = rows.studies.find(study)
        if row is None:
            raise Unknown(f"there is no study {study}")
        live = rows.chains.live(row.stream)
    for_it = [chain for chain in live if any(stage.study == study for stage in chain.stages)]
    return row, [ChainId(chain.chain) for chain in for_it]


ERASED_TEXT = "(erased)"
EVENTS_WITH_NAMES = (
    "StudySubmitted",
    "ConfigurationSuggested",
    "SuggestionWithdrawn",
    "TrialAdded",
    "NoteAdded",
    "NoteCorrected",
    "StudyLabelled",
)
"""Events whose data names a principal; all others have it in the column `by` only."""

Json = dict[str, Any]


def erase_person(database: Database, name: str) -> tuple[str, int]:
    """Replace a principal's name by a pseudonym everywhere, and revoke the token of that name.

    Returns the pseudonym, and the number of events that had the name. Raises `DatabaseUnavailable`, `LostRace`.
    """
    pseudonym = f"erased-{secrets.token_hex(6)}"
    pseudonyms = {name: pseudonym, f"{name}/agent": f"{pseudonym}/agent"}

    def rename(data: Json) -> Json:
        data = {**data, "by": pseudonyms[data["by"]]} if data.get("by") in pseudonyms else data
        reason = data.get("reason")
        if isinstance(reason, dict) and reason.get("suggested_by") in pseudonyms:
            data = {**data, "reason": {**reason, "suggested_by": pseudonyms[reason["suggested_by"]]}}
        return data

    with _unarchive_all(database), database.write() as session:
        events = sum(
            session.execute(update(EVENTS).where(EVENTS.c.by == signature).values(by=other)).rowcount
            for signature, other in pseudonyms.items()
        )
        named = _rewrite(session, EVENTS_WITH_NAMES, rename)
        session.execute(update(STUDIES).where(STUDIES.c.owner == name).values(owner=pseudonym))
        session.execute(delete(TOKENS).where(TOKENS.c.name == name))
        key = f"api:{quote(name, safe='')}"
        session.execute(delete(KEYS).where(or_(KEYS.c.key == key, KEYS.c.key.startswith(f"{key}:", autoescape=True))))
    _purge_free_pages(database)
    return pseudonym, max(events, named)


def erase_notes(database: Database, study: str) -> int:
    """Erase the text of a study's notes; returns how many there were. Raises `DatabaseUnavailable`, `LostRace`."""

    def erase(data: Json) -> Json:
        return {**data, "text": ERASED_TEXT} if data["study"] == study else data

    with _unarchive_all(database), database.write() as session:
        count = _rewrite(session, ["NoteAdded", "NoteCorrected"], erase)
    _purge_free_pages(database)
    return count


@contextmanager
def _unarchive_all(database: Database) -> Iterator[None]:
    """Bring all archived plans back for the block. If the process is interrupted, they stay unarchived, which is
    harmless.
    """
    streams = archive.list_archived(database)
    for stream in streams:
        archive.bring_back(database, stream)
    yield
    for stream in streams:
        archive.archive(database, stream, time.time())


def _rewrite(session: SqlSession, kinds: Sequence[str], change: Callable[[Json], Json]) -> int:
    """Change the data of all events of these kinds; returns how many are different now."""
    places = select(EVENTS.c.position, EVENTS.c.data).where(EVENTS.c.type.in_(kinds))
    changed = [(position, after) for position, data in session.execute(places) if (after := change(data)) != data]
    for position, data in changed:
        session.execute(update(EVENTS).where(EVENTS.c.position == position).values(data=data))
    return len(changed)


def _purge_free_pages(database: Database) -> None:
    """SQLite keeps overwritten data in free pages and in the write-ahead log unless this is disabled."""
    if database.engine.dialect.name != "sqlite":
        return
    with closing(database.engine.raw_connection()) as connection:  # no transaction is begun on it
        connection.cursor().execute("VACUUM")
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
