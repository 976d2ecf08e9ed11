"""The rows of schedulers in a database."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.events.database import insert
from app.events.rows.clock import now
from app.events.rows.ports import SchedulersPort
from app.events.tables import SCHEDULERS


class Schedulers(SchedulersPort):
    def __init__(self, session: Session) -> None:
        self._session = session

    def ticked(self, owner: str, host: str, pid: int) -> None:
        facts = {"host": host, "pid": pid, "ticked_at": now(self._session)}
        row = insert(self._session, SCHEDULERS).values(owner=owner, **facts)
        self._session.execute(row.on_conflict_do_update(index_elements=["owner"], set_=facts))

    def forget(self, owner: str) -> None:
        self._session.execute(delete(SCHEDULERS).where(SCHEDULERS.c.owner == owner))

    def last_tick(self) -> float | None:
        last: float | None = self._session.scalar(select(func.max(SCHEDULERS.c.ticked_at)))
        return last
