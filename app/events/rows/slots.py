"""The rows of slots and of schedulers in a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, select, text, update
from sqlalchemy.orm import Session

from app.events.database import insert
from app.events.rows.clock import now
from app.events.rows.ports import SchedulersPort, SlotsPort
from app.events.rows.values import SlotLost, SlotRecord, SlotTaken
from app.events.tables import CHAINS, LIVE, SCHEDULERS, SLOTS


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


class Slots(SlotsPort):
    def __init__(self, session: Session) -> None:
        self._session = session

    def all(self) -> list[SlotRecord]:
        return self._rows(select(SLOTS))

    def get(self, name: str) -> SlotRecord | None:
        rows = self._rows(select(SLOTS).where(SLOTS.c.name == name))
        return rows[0] if rows else None

    def alive(self, seen_within: float) -> list[SlotRecord]:
        return self._rows(select(SLOTS).where(self._is_alive(seen_within)))

    def free(self, seen_within: float) -> list[SlotRecord]:
        at = now(self._session)
        well = (SLOTS.c.quarantined_until.is_(None)) | (SLOTS.c.quarantined_until <= at)
        return self._rows(select(SLOTS).where(self._is_alive(seen_within), SLOTS.c.chain.is_(None), well))

    def take(self, name: str, owner: str, *, instead_of: str | None, device: str, host: str, pid: int) -> None:
        facts = {"owner": owner, "device": device, "host": host, "pid": pid, "seen_at": now(self._session)}
        facts |= {"resident_model": None, "trainers": {}, "note": None, "quarantined_until": None}
        if instead_of is None:
            new = insert(self._session, SLOTS).values(name=name, **facts).on_conflict_do_nothing()
            taken = self._session.execute(new.returning(SLOTS.c.name)).one_or_none()
        else:
            held = update(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == instead_of).values(**facts)
            taken = self._session.execute(held.returning(SLOTS.c.name)).one_or_none()
        if taken is None:
            raise SlotTaken(f"Slot {name} is another worker's.")
        self._session.execute(update(CHAINS).where(CHAINS.c.slot == name, text(LIVE)).values(lease_until=0.0))

    def touch(self, name: str, owner: str) -> None:
        self._change(name, owner, {"seen_at": now(self._session)})

    def describe(self, name: str, owner: str, *, trainers: Mapping[str, str], note: str | None) -> None:
        self._change(name, owner, {"trainers": dict(trainers), "note": note})

    def quarantine(self, name: str, owner: str, *, seconds: float | None, reason: str | None) -> None:
        until = None if seconds is None else now(self._session) + seconds
        self._change(name, owner, {"quarantined_until": until, "note": reason})

    def retire(self, name: str, owner: str) -> None:
        gone = delete(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == owner).returning(SLOTS.c.name)
        if self._session.execute(gone).one_or_none() is None:
            return
        mine = update(CHAINS).where(CHAINS.c.slot == name)
        self._session.execute(mine.where(CHAINS.c.state == "ready").values(lease_until=0.0))
        self._session.execute(mine.where(CHAINS.c.state == "running").values(stop=True))

    def forget_all(self) -> None:
        self._session.execute(update(CHAINS).where(text(LIVE)).values(lease_until=0.0))
        self._session.execute(delete(SLOTS))

    def _change(self, name: str, owner: str, values: Mapping[str, Any]) -> None:
        mine = update(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == owner).values(**values)
        if self._session.execute(mine.returning(SLOTS.c.name)).one_or_none() is None:
            raise SlotLost(f"Slot {name} is another worker's by now.")

    def _is_alive(self, seen_within: float) -> ColumnElement[bool]:
        """Whoever was seen much later than now was not seen since the clock went back."""
        at = now(self._session)
        return SLOTS.c.seen_at.between(at - seen_within, at + seen_within)

    def _rows(self, query: Select[Any]) -> list[SlotRecord]:
        return [SlotRecord(**row._mapping) for row in self._session.execute(query.order_by(SLOTS.c.name))]
