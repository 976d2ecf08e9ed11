"""The rows in memory: studies, slots, tokens and schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.terms import FINAL_STATES, ChainState
from app.events.memory.chains import MemoryChains, Tables, Tick
from app.events.rows import (
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


class MemoryStudies(StudiesPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, study: StudyRecord) -> None:
        self._tables.studies.put(study.id, study)

    def set_state(self, id: str, state: str) -> None:
        self._set(id, state=state)

    def set_audited(self, id: str, is_audited: bool) -> None:
        self._set(id, audited=is_audited or None)

    def set_tags(self, id: str, tags: Sequence[str]) -> None:
        self._set(id, tags=tuple(tags) or None)

    def _set(self, id: str, **fields: Any) -> None:
        if (row := self._tables.studies.get(id)) is not None:
            self._tables.studies.put(id, replace(row, **fields))

    def show_due(self, due: Mapping[str, float]) -> None:
        for row in [row for row in self._tables.studies.values() if row.slots_due != due.get(row.id)]:
            self._tables.studies.put(row.id, replace(row, slots_due=due.get(row.id)))

    def remove(self, id: str) -> None:
        if self._tables.studies.get(id) is not None:
            self._tables.studies.remove(id)

    def find(self, id: str) -> StudyRecord | None:
        return self._tables.studies.get(id)

    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        rows = sorted(self._tables.studies.values(), key=lambda row: (row.submitted_at, row.id), reverse=True)
        if after is not None:
            rows = rows[rows.index(cursor) + 1 :] if (cursor := self.find(after)) else []
        return rows[:limit]

    def owned(self, owner: str) -> list[StudyRecord]:
        return sorted((row for row in self._tables.studies.values() if row.owner == owner), key=lambda row: row.id)

    def count_by_state(self) -> dict[str, int]:
        return dict(Counter(row.state for row in self._tables.studies.values()))

    def active_streams(self) -> list[str]:
        return sorted({row.stream for row in self._tables.studies.values() if row.state not in FINAL_STATES})

    def busy_versions(self) -> dict[str, int]:
        audited = (row.stream for row in self._tables.studies.values() if row.audited)
        busy = {*self.active_streams(), *+self._tables.live.by_stream, *audited}
        return {stream: version for stream, version in sorted(self._tables.versions.items()) if stream in busy}


class MemorySlots(SlotsPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def all(self) -> list[SlotRecord]:
        return sorted(self._tables.slots.values(), key=lambda row: row.name)

    def get(self, name: str) -> SlotRecord | None:
        return self._tables.slots.get(name)

    def alive(self, seen_within: float) -> list[SlotRecord]:
        at = self._tables.clock()
        return [row for row in self.all() if row.was_seen(at, seen_within)]

    def take(
        self, name: str, owner: str, *, instead_of: str | None, device: str, host: str, pid: int, **its: str
    ) -> None:
        before = self.get(name)
        if (before and before.owner) != instead_of:
            raise SlotTaken(f"Slot {name} is another worker's.")
        chain, at = None if before is None else before.chain, self._tables.clock()
        new = SlotRecord(name=name, owner=owner, device=device, host=host, pid=pid, seen_at=at, chain=chain, **its)  # type: ignore[arg-type]
        lent = min((gang.chain for gang in self._tables.gangs_with(name)), default=None)
        self._tables.slots.put(name, replace(new, lent_to=lent))
        for row in self._tables.live.chains_on(name):
            self._tables.live.put(row.chain, replace(row, lease_until=0.0))

    def touch(self, name: str, owner: str, gauges: Mapping[str, float] | None = None) -> SlotRecord:
        self._change(name, owner, seen_at=self._tables.clock(), gauges=gauges)
        return self._tables.slots.get(name)  # type: ignore[return-value]  # or it is lost

    def describe(self, name: str, owner: str, *, trainers: Mapping[str, str], note: str | None) -> None:
        self._change(name, owner, trainers=dict(trainers), note=note)

    def empty(self, name: str, owner: str, chain: str) -> None:
        self._change(name, owner, emptied_for=chain)

    def quarantine(self, name: str, owner: str, *, seconds: float | None, reason: str | None) -> None:
        until = None if seconds is None else self._tables.clock() + seconds
        self._change(name, owner, quarantined_until=until, note=reason)

    def retire(self, name: str, owner: str) -> None:
        row = self.get(name)
        if row is None or row.owner != owner:
            return
        self._tables.slots.remove(name)
        for chain in self._tables.live.chains_on(name):
            if chain.state == ChainState.READY:
                self._tables.live.put(chain.chain, replace(chain, lease_until=0.0))
            elif chain.state == ChainState.RUNNING:
                self._tables.live.put(chain.chain, replace(chain, stop=True))
        for gang in self._tables.gangs_with(name):
            how: dict[str, Any] = {"preempt": True} if gang.state == ChainState.RUNNING else {"lease_until": 0.0}
            self._tables.live.put(gang.chain, replace(gang, **how))

    def forget_all(self) -> None:
        for chain in list(self._tables.live.values()):
            self._tables.live.put(chain.chain, replace(chain, lease_until=0.0))
        for row in self.all():
            self._tables.slots.remove(row.name)

    def _change(self, name: str, owner: str, **values: Any) -> None:
        if (row := self.get(name)) is None or row.owner != owner:
            raise SlotLost(f"Slot {name} is another worker's by now.")
        self._tables.slots.put(name, replace(row, **values))


class MemoryTokens(TokensPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, token: TokenRecord) -> None:
        self._tables.tokens.put(token.name, token)

    def mark(self, digest: str, **times: Any) -> None:
        if (token := self.find_digest(digest)) is not None:
            self.put(replace(token, **times))

    def count_write(self, name: str, before: int) -> bool:
        if (token := self.find(name)) is None or token.writes != before:
            return False
        self.put(replace(token, writes=before + 1))
        return True

    def find(self, name: str) -> TokenRecord | None:
        return self._tables.tokens.get(name)

    def find_digest(self, digest: str) -> TokenRecord | None:
        return next((row for row in self._tables.tokens.values() if row.digest == digest), None)

    def all(self) -> list[TokenRecord]:
        return sorted(self._tables.tokens.values(), key=lambda row: row.name)


class MemorySchedulers(SchedulersPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def record_tick(
        self, owner: str, host: str, pid: int, demand: Mapping[str, Any] | None = None, **also: Any
    ) -> None:
        self._tables.schedulers.put(owner, Tick(f"{host}-{pid}", self._tables.clock(), demand, **also))

    def forget(self, owner: str) -> None:
        if self._tables.schedulers.get(owner) is not None:
            self._tables.schedulers.remove(owner)

    def last_tick(self) -> float | None:
        return max((tick.at for tick in self._tables.schedulers.values()), default=None)

    def last_report(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        last = max(self._tables.schedulers.values(), key=lambda tick: tick.at, default=Tick("", 0.0, None))
        return last.demand, last.held_up

    def memory(self, ticked_within: float) -> dict[str, int]:
        since = self._tables.clock() - ticked_within
        ticks = [tick for tick in self._tables.schedulers.values() if tick.at > since]
        return {tick.process: tick.memory_bytes for tick in ticks if tick.memory_bytes is not None}


class MemoryRows(RowsPort):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.studies, self.slots, self.chains = MemoryStudies(tables), MemorySlots(tables), MemoryChains(tables)
        self.schedulers, self.tokens = MemorySchedulers(tables), MemoryTokens(tables)

    def installation(self) -> Installation:
        return self._tables.installation

    def name_installation(self, name: str) -> None:
        self._tables.installation = replace(self._tables.installation, name=name)

    def pause_deletion(self, seconds: float | None) -> None:
        until = None if seconds is None else self.now() + seconds
        self._tables.installation = replace(self._tables.installation, paused_until=until)

    def now(self) -> float:
        return self._tables.clock()

    def changes(self, since: object = None) -> RowChanges:
        chains, slots = self._tables.live, self._tables.slots
        before = (None, None) if since is None else since
        assert isinstance(before, tuple)  # the mark of an earlier call
        mark = (chains.revision, slots.revision)
        return RowChanges(mark, chains.changed_since(before[0]), slots.changed_since(before[1]))
