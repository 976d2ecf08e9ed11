"""The rows beside the log, in a database: `Rows` is what a transaction sees, and `append` changes alongside its events.

Time is the database's, or that of the clock given to `Database`. What each operation means is said in `ports`.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.events.database import place_of
from app.events.rows.chains import Chains
from app.events.rows.ports import RowsPort
from app.events.rows.sql import Schedulers, Slots, Studies, Tokens
from app.events.rows.values import (
    ChainFlags,
    ChainNotClaimable,
    ChainRecord,
    Fenced,
    Installation,
    Lease,
    SlotLost,
    SlotRecord,
    SlotTaken,
    StudyRecord,
    TokenRecord,
    has_expired,
    now,
)
from app.events.tables import INSTALLATION


class Rows(RowsPort):
    def __init__(self, session: Session) -> None:
        self._session = session
        self.studies, self.slots, self.chains = Studies(session), Slots(session), Chains(session)
        self.schedulers, self.tokens = Schedulers(session), Tokens(session)

    def installation(self) -> Installation:
        row = self._session.execute(select(INSTALLATION.c.name, INSTALLATION.c.paused_until)).one()
        return Installation(row.name, place_of(self._session), row.paused_until)

    def name_installation(self, name: str) -> None:
        self._session.execute(update(INSTALLATION).values(name=name))

    def pause_deletion(self, seconds: float | None) -> None:
        until = None if seconds is None else now(self._session) + seconds
        self._session.execute(update(INSTALLATION).values(paused_until=until))

    def now(self) -> float:
        return self._session.execute(select(now(self._session))).scalar_one()


__all__ = [
    "ChainFlags",
    "ChainNotClaimable",
    "ChainRecord",
    "Fenced",
    "Installation",
    "Lease",
    "Rows",
    "RowsPort",
    "SlotLost",
    "SlotRecord",
    "SlotTaken",
    "StudyRecord",
    "TokenRecord",
    "has_expired",
]
