"""The rows beside the log, in a database.

`append` changes them in the transaction of its events. Time is the database's, or that of the clock given to
`Database`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, select, update

from app.events.database import SqlSession, place_of
from app.events.row_types import Installation, RowChanges
from app.events.rows.chains import Chains
from app.events.rows.ports import RowsPort
from app.events.rows.sql import NOTHING_SEEN, Mark, Schedulers, Slots, Studies, Tokens, take_mark
from app.events.tables import INSTALLATION


@lru_cache
def _time(now: ColumnElement[float]) -> Select[Any]:
    return select(now)


class Rows(RowsPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self.studies, self.slots, self.chains = Studies(session), Slots(session), Chains(session)
        self.schedulers, self.tokens = Schedulers(session), Tokens(session)

    def installation(self) -> Installation:
        row = self._session.execute(select(INSTALLATION.c.name, INSTALLATION.c.paused_until)).one()
        return Installation(row.name, place_of(self._session), row.paused_until)

    def name_installation(self, name: str) -> None:
        self._session.execute(update(INSTALLATION).values(name=name))

    def pause_deletion(self, seconds: float | None) -> None:
        until = None if seconds is None else self._session.now + seconds
        self._session.execute(update(INSTALLATION).values(paused_until=until))

    def now(self) -> float:
        at: float = self._session.execute(_time(self._session.now)).scalar_one()
        return at

    def changes(self, since: object = None) -> RowChanges:
        before = NOTHING_SEEN if since is None else since
        assert isinstance(before, Mark)
        mark = take_mark(self._session)
        chains = {row.chain: row for row in Chains(self._session).rows_written_since(before.writer)}
        slots = {row.name: row for row in Slots(self._session).rows_written_since(before.writer)}
        mark = replace(mark, chains=mark.chains | chains.keys(), slots=mark.slots | slots.keys())
        over, gone = before.chains - mark.chains, before.slots - mark.slots
        return RowChanges(mark, {**dict.fromkeys(over), **chains}, {**dict.fromkeys(gone), **slots})
