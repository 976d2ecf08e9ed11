"""What grows beside the log and serves nobody any more is removed: a little at a time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Table, delete, select

from app.domain.states import ChainState
from app.events.database import Database
from app.events.rows.clock import now
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
