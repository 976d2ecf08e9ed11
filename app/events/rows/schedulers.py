"""The processes that tick, each with the time of its last tick."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.events.database import insert
from app.events.rows.clock import now
from app.events.tables import SCHEDULERS


class Schedulers:
    """The rows of schedulers, inside one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ticked(self, owner: str, host: str, pid: int) -> None:
        """The process has looked at everything just now."""
        facts = {"host": host, "pid": pid, "ticked_at": now(self._session)}
        row = insert(self._session, SCHEDULERS).values(owner=owner, **facts)
        self._session.execute(row.on_conflict_do_update(index_elements=["owner"], set_=facts))

    def forget(self, owner: str) -> None:
        """The process is gone."""
        self._session.execute(delete(SCHEDULERS).where(SCHEDULERS.c.owner == owner))

    def last_tick(self) -> float | None:
        """When one of them last did; None if none ever has."""
        last: float | None = self._session.scalar(select(func.max(SCHEDULERS.c.ticked_at)))
        return last
