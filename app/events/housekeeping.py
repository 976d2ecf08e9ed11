"""What operators and time remove: studies that are struck, and rows beside the log that serve nobody.

A strike is an event like any other, so each replay of the log comes to the same plan; but it is looked for before a
stream is folded (`EventLog.struck`), and what the study's trials asked for is not in the plan then. What was trained
for it stays on record with the nodes, for other studies that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Table, delete, select

from app.domain import events as e
from app.domain.errors import Unknown
from app.domain.ids import ChainId, StudyId
from app.domain.states import ChainOutcome, ChainState
from app.events.database import Database
from app.events.log import VersionConflict
from app.events.records import Records
from app.events.rows import Fenced, StudyRecord
from app.events.rows.ports import RowsPort
from app.events.rows.values import now
from app.events.tables import CHAINS, KEYS, SCHEDULERS, SLOTS

BATCH = 1000
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Ages:
    """After how many days each kind of row goes: idempotency keys, chains that are over, workers that are gone."""

    keys: float = 7.0
    chains: float = 7.0
    workers: float = 1.0


def clean(database: Database, ages: Ages) -> Mapping[str, int]:
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
