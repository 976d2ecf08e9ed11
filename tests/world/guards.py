"""Guards, each of which can be taken away: some history must then go wrong, or the guard guards nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.domain import checkpoint_needs
from app.events import plans
from app.events.log import Append, EventLog, StoredEvent, assign_positions
from app.events.memory.chains import MemoryChains, Table
from app.events.memory.log import MemoryLog
from app.events.rows import ChainFlags, ChainRecord, Fenced, LeaseFence, SlotRecord
from app.outages import DatabaseUnavailable
from app.workers.scheduler.reaper import Reaper
from app.workers.slot import group, models
from app.workers.slot.checkpoint_store import CheckpointStore, Stored
from app.workers.slot.models import LaneContext
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.model import HpTimeline
from stagetree.runtime.packed import Failed, PackedModels
from tests.world.servers import WorldLog

Without = Callable[[pytest.MonkeyPatch], None]


def fences(patch: pytest.MonkeyPatch) -> None:
    """Who had a chain may write for it when it is over."""

    def ignore_fence(name: str) -> Callable[..., Any]:
        real = getattr(MemoryChains, name)

        def do(*given: Any) -> Any:
            try:
                return real(*given)
            except Fenced:
                return ChainFlags()

        return do

    for name in ("report", "heartbeat", "flags", "advance", "release", "finish"):
        patch.setattr(MemoryChains, name, ignore_fence(name))


def keys_of_facts(patch: pytest.MonkeyPatch) -> None:
    """Facts without an answer are recorded again."""
    write = MemoryLog.write

    def drop_key(self: MemoryLog, append: Append) -> Any:
        key = append.idempotency.key if append.idempotency else ""
        return write(self, replace(append, idempotency=None) if key.startswith("slot:") else append)

    patch.setattr(MemoryLog, "write", drop_key)


def keys_of_requests(patch: pytest.MonkeyPatch) -> None:
    """As the one before, of a client's."""
    find = MemoryLog.find_by_key

    def skip_requests(self: MemoryLog, key: str, fingerprint: str = "") -> Any:
        return None if key.startswith("api:") else find(self, key, fingerprint)

    patch.setattr(MemoryLog, "find_by_key", skip_requests)


def versions_of_streams(patch: pytest.MonkeyPatch) -> None:
    """Decisions on an old plan are recorded."""
    write = MemoryLog.write
    patch.setattr(MemoryLog, "write", lambda self, append: write(self, replace(append, expected=None)))


def hashes_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A damaged state is trained on."""

    def read(self: Any, key: str, sha256: str, parts: Any = ()) -> Any:
        return self._fetched(key)[0]

    patch.setattr(CheckpointStore, "read", read)


def leases(patch: pytest.MonkeyPatch) -> None:
    """The chains of dead workers are never ended."""
    patch.setattr(Reaper, "reap", lambda self, seen: False)


def facts_that_wait(patch: pytest.MonkeyPatch) -> None:
    """What a slot cannot record at once is dropped."""
    real = WorldLog.write

    def write(self: WorldLog, append: Append) -> Any:
        try:
            return real(self, append)
        except DatabaseUnavailable:
            if append.idempotency is None or not append.idempotency.key.startswith("slot:"):
                raise
            return assign_positions(append, append.events, 0, 0)

    patch.setattr(WorldLog, "write", write)


def checkpoints_in_use(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints for which trials wait are deleted like the rest."""
    patch.setattr(checkpoint_needs, "required_keys", lambda plan: set())


def facts_before_states(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is on record before it is stored."""

    def write(self: Any, place: str, state: Any, **how: Any) -> Any:
        try:
            return real(self, place, state, **how)
        except Exception:
            return Stored(f"{place}-lost.safetensors", "0" * 64, state.size)

    real = CheckpointStore.write
    patch.setattr(CheckpointStore, "write", write)


def crashes_of_packs(patch: pytest.MonkeyPatch) -> None:
    """What ends the process of a pack is held against each of its lanes."""
    patch.setattr(group, "PackBroken", lambda text: TrainerFailed("crash", text))


def marks_without_pack(patch: pytest.MonkeyPatch) -> None:
    """Trials that are trained without their pack have no mark."""

    def unmarked_context(*given: Any) -> LaneContext:
        return LaneContext(*given[:4])

    patch.setattr(group, "LaneContext", unmarked_context)


def lanes_that_nobody_has(patch: pytest.MonkeyPatch) -> None:
    """A lane that has a pack to itself is trained alone."""
    advance = PackedModels.advance

    def alone(self: PackedModels, timelines: Mapping[int, HpTimeline]) -> Failed:
        if len(self.numbers) > 1:
            return advance(self, timelines)
        for number, timeline in timelines.items():
            self[number].advance(timeline)
        return {}

    patch.setattr(PackedModels, "advance", alone)


def room_for_others(patch: pytest.MonkeyPatch) -> None:
    """A model for which there is no memory beside others has failed."""
    patch.setattr(models, "MEMORY_FAILURES", ())


def processes_of_packs(patch: pytest.MonkeyPatch) -> None:
    """The process of a pack is never compared with the process of its lane."""
    patch.setattr(models.PackedModel, "is_alive", True)


def slots_that_are_lent(patch: pytest.MonkeyPatch) -> None:
    """A chain that is over keeps the slots that were lent to it."""
    put = Table.put

    def keep(self: Table[Any], key: str, row: Any) -> None:
        before = self.get(key)
        is_lent = isinstance(row, SlotRecord) and isinstance(before, SlotRecord) and before.owner == row.owner
        put(self, key, replace(row, lent_to=row.lent_to or before.lent_to) if is_lent else row)

    patch.setattr(Table, "put", keep)


def counts_of_reports(patch: pytest.MonkeyPatch) -> None:
    """A worker whose reports were lost records the next ones behind the hole."""

    def report(self: MemoryChains, chain: str, fence: LeaseFence) -> None:
        row = self.get(chain)
        real(self, chain, fence if row is None else replace(fence, reports=row.reports))

    real = MemoryChains.report
    patch.setattr(MemoryChains, "report", report)
    patch.setattr(
        ChainRecord, "is_held_by", lambda self, fence: (self.fence, self.owner) == (fence.number, fence.owner)
    )


def losses_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Readers do not notice that the log has lost events that they had read."""

    def read_after(log: EventLog, stream: str, last: StoredEvent | None, limit: int) -> list[StoredEvent]:
        return log.read(stream, after=0 if last is None else last.version, limit=limit)

    patch.setattr(plans, "read_after", read_after)


ALL: list[Without] = [fences, keys_of_facts, keys_of_requests, versions_of_streams, hashes_of_checkpoints, leases]
ALL += [facts_that_wait, checkpoints_in_use, facts_before_states, crashes_of_packs, marks_without_pack]
ALL += [lanes_that_nobody_has, room_for_others, processes_of_packs, slots_that_are_lent, losses_in_memory]
ALL += [counts_of_reports]
GUARDS: dict[str, Without] = {each.__name__: each for each in ALL}

SHOWN_BY: Mapping[str, int] = {
    "checkpoints_in_use": 5,
    "counts_of_reports": 257,
    "crashes_of_packs": 124,
    "facts_that_wait": 80,
    "fences": 38,
    "keys_of_facts": 37,
    "leases": 8,
    "losses_in_memory": 8,
    "marks_without_pack": 83,
    "processes_of_packs": 21,
    "room_for_others": 11,
    "versions_of_streams": 30,
}
"""From which seed on a history soon shows that a guard is missing: others do as well, later."""
