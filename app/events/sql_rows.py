"""The rows beside the log, in a database.

`append` changes them in the transaction of its events. Time is the database's, or that of the clock given to
`Database`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, bindparam, delete, func, select, text, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate

from app.events.database import SqlSession, insert, place_of, was_written_since
from app.events.rows import (
    AT_WORK,
    LIVE,
    Installation,
    RowChanges,
    RowsPort,
    SchedulersPort,
    SlotLost,
    SlotRecord,
    SlotsPort,
    SlotTaken,
    StudiesPort,
    StudyRecord,
    TokenRecord,
    TokensPort,
)
from app.events.sql_chains import Chains
from app.events.tables import ACTIVE, BUSY, CHAINS, INSTALLATION, SCHEDULERS, SLOTS, STREAMS, STUDIES, TOKENS

ALL_SLOTS = select(SLOTS).order_by(SLOTS.c.name)
ONE_SLOT = ALL_SLOTS.where(SLOTS.c.name == bindparam("slot"))
"""Built once, like `BUSY_VERSIONS`: each tick and each heartbeat runs these statements."""

ONE_STUDY = select(STUDIES).where(STUDIES.c.id == bindparam("id"))
BUSY_VERSIONS = select(STREAMS.c.stream, STREAMS.c.version).where(STREAMS.c.stream.in_(BUSY)).order_by(STREAMS.c.stream)


@lru_cache
def _alive_slots(now: ColumnElement[float]) -> Select[Any]:
    """As `SlotRecord.was_seen`."""
    within = bindparam("within", type_=Float)
    return ALL_SLOTS.where(SLOTS.c.seen_at.between(now - within, now + within))


@lru_cache
def _touch(now: ColumnElement[float]) -> ReturningUpdate[Any]:
    mine = update(SLOTS).where(SLOTS.c.name == bindparam("its_name"), SLOTS.c.owner == bindparam("its_owner"))
    return mine.values(seen_at=now, gauges=bindparam("now_gauges", type_=SLOTS.c.gauges.type)).returning(*SLOTS.c)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a reader has seen a database: it saw the writes of all transactions before `writer`.

    writer: the oldest transaction that was under way; its number wraps around at 2^32. None if the database does
    not record which transaction wrote a row; each look then returns all rows. chains, slots: the names of the rows.
    """

    writer: int | None
    chains: Set[str]
    slots: Set[str]


NOTHING_SEEN = Mark(None, frozenset(), frozenset())

SNAPSHOT = text(
    "SELECT txid_snapshot_xmin(txid_current_snapshot()) % 4294967296,"
    f" ARRAY(SELECT chain FROM chains WHERE {LIVE}), ARRAY(SELECT name FROM slots)"
)


def take_mark(session: SqlSession) -> Mark:
    """To be called before any row is read. SQLite reads all rows each time, and needs no names."""
    if session.dialect != "postgresql":
        return NOTHING_SEEN
    writer, chains, slots = session.execute(SNAPSHOT).one()
    return Mark(writer, frozenset(chains), frozenset(slots))


NEW_SLOTS = ALL_SLOTS.where(was_written_since("slots"))


class Schedulers(SchedulersPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def record_tick(
        self, owner: str, host: str, pid: int, demand: Mapping[str, Any] | None = None, **also: Any
    ) -> None:
        facts = {"host": host, "pid": pid, "ticked_at": self._session.now, "demand": demand, **also}
        row = insert(self._session, SCHEDULERS).values(owner=owner, **facts)
        self._session.execute(row.on_conflict_do_update(index_elements=["owner"], set_=facts))

    def forget(self, owner: str) -> None:
        self._session.execute(delete(SCHEDULERS).where(SCHEDULERS.c.owner == owner))

    def last_tick(self) -> float | None:
        last: float | None = self._session.scalar(select(func.max(SCHEDULERS.c.ticked_at)))
        return last

    def last_report(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        query = select(SCHEDULERS.c.demand, SCHEDULERS.c.held_up).order_by(SCHEDULERS.c.ticked_at.desc()).limit(1)
        demand, held_up = self._session.execute(query).one_or_none() or (None, None)
        return demand, held_up or {}

    def memory(self, ticked_within: float) -> dict[str, int]:
        is_recent = SCHEDULERS.c.ticked_at > self._session.now - ticked_within
        query = select(SCHEDULERS.c.host, SCHEDULERS.c.pid, SCHEDULERS.c.memory_bytes)
        known = self._session.execute(query.where(SCHEDULERS.c.memory_bytes.is_not(None), is_recent))
        return {f"{row.host}-{row.pid}": row.memory_bytes for row in known}


class Slots(SlotsPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def all(self) -> list[SlotRecord]:
        return self._rows(ALL_SLOTS)

    def get(self, name: str) -> SlotRecord | None:
        rows = self._rows(ONE_SLOT, {"slot": name})
        return rows[0] if rows else None

    def rows_written_since(self, writer: int | None) -> list[SlotRecord]:
        """See `Mark`."""
        return self.all() if writer is None else self._rows(NEW_SLOTS, {"writer": writer})

    def alive(self, seen_within: float) -> list[SlotRecord]:
        return self._rows(_alive_slots(self._session.now), {"within": seen_within})

    def take(
        self, name: str, owner: str, *, instead_of: str | None, device: str, host: str, pid: int, **its: str
    ) -> None:
        facts = {"owner": owner, "device": device, "host": host, "pid": pid, "seen_at": self._session.now}
        facts |= {"kind": "", "address": "", **its}
        facts |= {"resident_model": None, "trainers": {}, "note": None, "quarantined_until": None, "emptied_for": None}
        facts |= {"gauges": None}
        if instead_of is None:
            new = insert(self._session, SLOTS).values(name=name, **facts).on_conflict_do_nothing()
            row = self._session.execute(new.returning(SLOTS.c.name)).one_or_none()
        else:
            held = update(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == instead_of).values(**facts)
            row = self._session.execute(held.returning(SLOTS.c.name)).one_or_none()
        if row is None:
            raise SlotTaken(f"Slot {name} is another worker's.")
        self._session.execute(update(CHAINS).where(CHAINS.c.slot == name, text(LIVE)).values(lease_until=0.0))
        for gang in self._gangs_with(name):  # even if the row was deleted
            self._session.execute(update(SLOTS).where(SLOTS.c.name == name).values(lent_to=gang))

    def touch(self, name: str, owner: str, gauges: Mapping[str, float] | None = None) -> SlotRecord:
        given = {"its_name": name, "its_owner": owner, "now_gauges": gauges}
        row = self._session.execute(_touch(self._session.now), given).one_or_none()
        if row is None:
            raise SlotLost(f"Slot {name} is another worker's by now.")
        return SlotRecord(**row._mapping)

    def describe(self, name: str, owner: str, *, trainers: Mapping[str, str], note: str | None) -> None:
        self._change(name, owner, {"trainers": dict(trainers), "note": note})

    def empty(self, name: str, owner: str, chain: str) -> None:
        self._change(name, owner, {"emptied_for": chain})

    def quarantine(self, name: str, owner: str, *, seconds: float | None, reason: str | None) -> None:
        until = None if seconds is None else self._session.now + seconds
        self._change(name, owner, {"quarantined_until": until, "note": reason})

    def retire(self, name: str, owner: str) -> None:
        gone = delete(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == owner).returning(SLOTS.c.name)
        if self._session.execute(gone).one_or_none() is None:
            return
        mine = update(CHAINS).where(CHAINS.c.slot == name)
        self._session.execute(mine.where(CHAINS.c.state == "ready").values(lease_until=0.0))
        self._session.execute(mine.where(CHAINS.c.state == "running").values(stop=True))
        for gang in self._gangs_with(name):
            its = update(CHAINS).where(CHAINS.c.chain == gang)
            self._session.execute(its.where(CHAINS.c.state == "ready").values(lease_until=0.0))
            self._session.execute(its.where(CHAINS.c.state == "running").values(preempt=True))

    def forget_all(self) -> None:
        self._session.execute(update(CHAINS).where(text(LIVE)).values(lease_until=0.0))
        self._session.execute(delete(SLOTS))

    def _gangs_with(self, name: str) -> list[str]:
        """The live chains that the slot is lent to, even if its own row is gone."""
        gangs = select(CHAINS.c.chain, CHAINS.c.members).where(text(LIVE), CHAINS.c.members.is_not(None))
        at_work = gangs.where(CHAINS.c.state.in_(AT_WORK)).order_by(CHAINS.c.chain)
        return [row.chain for row in self._session.execute(at_work) if name in row.members]

    def _change(self, name: str, owner: str, values: Mapping[str, Any]) -> None:
        mine = update(SLOTS).where(SLOTS.c.name == name, SLOTS.c.owner == owner).values(**values)
        if self._session.execute(mine.returning(SLOTS.c.name)).one_or_none() is None:
            raise SlotLost(f"Slot {name} is another worker's by now.")

    def _rows(self, query: Select[Any], given: Mapping[str, Any] | None = None) -> list[SlotRecord]:
        return [SlotRecord(**row._mapping) for row in self._session.execute(query, given)]


class Studies(StudiesPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def add(self, study: StudyRecord) -> None:
        self._session.execute(STUDIES.insert().values(asdict(study)))

    def set_state(self, id: str, state: str) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.id == id).values(state=state))

    def set_audited(self, id: str, is_audited: bool) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.id == id).values(audited=is_audited or None))

    def set_tags(self, id: str, tags: Sequence[str]) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.id == id).values(tags=list(tags) or None))

    def show_due(self, due: Mapping[str, float]) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.slots_due.is_not(None)).values(slots_due=None))
        for study, slots in due.items():
            self._session.execute(update(STUDIES).where(STUDIES.c.id == study).values(slots_due=slots))

    def remove(self, id: str) -> None:
        self._session.execute(delete(STUDIES).where(STUDIES.c.id == id))

    def find(self, id: str) -> StudyRecord | None:
        row = self._session.execute(ONE_STUDY, {"id": id}).one_or_none()
        return None if row is None else StudyRecord(**row._mapping)

    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        order = tuple_(STUDIES.c.submitted_at, STUDIES.c.id)
        query = select(STUDIES).order_by(STUDIES.c.submitted_at.desc(), STUDIES.c.id.desc()).limit(limit)
        if after is not None:
            cursor = select(STUDIES.c.submitted_at, STUDIES.c.id).where(STUDIES.c.id == after).scalar_subquery()
            query = query.where(order < cursor)
        return [StudyRecord(**row._mapping) for row in self._session.execute(query)]

    def owned(self, owner: str) -> list[StudyRecord]:
        query = select(STUDIES).where(STUDIES.c.owner == owner).order_by(STUDIES.c.id)
        return [StudyRecord(**row._mapping) for row in self._session.execute(query)]

    def count_by_state(self) -> dict[str, int]:
        query = select(STUDIES.c.state, func.count()).group_by(STUDIES.c.state)
        return {row[0]: row[1] for row in self._session.execute(query)}

    def active_streams(self) -> list[str]:
        query = select(STUDIES.c.stream).where(text(ACTIVE)).distinct().order_by(STUDIES.c.stream)
        return list(self._session.scalars(query))

    def busy_versions(self) -> dict[str, int]:
        return {row.stream: row.version for row in self._session.execute(BUSY_VERSIONS)}


class Tokens(TokensPort):
    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def put(self, token: TokenRecord) -> None:
        row = insert(self._session, TOKENS).values(asdict(token))
        self._session.execute(row.on_conflict_do_update(index_elements=[TOKENS.c.name], set_=asdict(token)))

    def mark(self, digest: str, **times: Any) -> None:
        self._session.execute(update(TOKENS).where(TOKENS.c.digest == digest).values(times))

    def count_write(self, name: str, before: int) -> bool:
        unchanged = update(TOKENS).where(TOKENS.c.name == name, TOKENS.c.writes == before)
        return self._session.execute(unchanged.values(writes=before + 1)).rowcount == 1

    def find(self, name: str) -> TokenRecord | None:
        return self._one(TOKENS.c.name == name)

    def find_digest(self, digest: str) -> TokenRecord | None:
        return self._one(TOKENS.c.digest == digest)

    def all(self) -> list[TokenRecord]:
        return [TokenRecord(**row._mapping) for row in self._session.execute(select(TOKENS).order_by(TOKENS.c.name))]

    def _one(self, is_it: ColumnElement[bool]) -> TokenRecord | None:
        row = self._session.execute(select(TOKENS).where(is_it)).one_or_none()
        return None if row is None else TokenRecord(**row._mapping)


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
