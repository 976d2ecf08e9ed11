"""The checkpoints inside a stage, kept for accidents: the newest, and those before it as long as there is room.

All of it runs on the saver's thread.
"""

from __future__ import annotations

import logging
from functools import partial

from app.away import LostRace
from app.domain import events as e
from app.domain.ids import NodeId
from app.events.database import DatabaseUnavailable
from app.events.records import Records
from app.workers.slot.checkpoint_store import Stored
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.saver import Saver

logger = logging.getLogger(__name__)


class IntermediateCheckpoints:
    """Those of one chain. limit: bytes for all of them; the newest may be larger."""

    def __init__(self, claim: Claim, limit: int, records: Records, outbox: FactOutbox, saver: Saver) -> None:
        self._claim, self._limit = claim, limit
        self._records, self._outbox, self._saver = records, outbox, saver
        self._kept: list[e.CheckpointKept] = []

    def keep(self, fact: e.CheckpointKept) -> None:
        """One more is stored. Older ones make room for it once it is on record."""
        self._kept.append(fact)
        self._outbox.put(self._claim, [fact], then=lambda: self._saver.submit(self._claim, self._make_room))

    def _make_room(self) -> None:
        newest = self._kept[-1]
        for old in self._kept[:-1]:
            if sum(each.size for each in self._kept) <= self._limit:
                return
            if old.node == newest.node and not self._is_needed(old):
                self._kept.remove(old)
                self._replace(old)

    def _replace(self, old: e.CheckpointKept) -> None:
        """Should this process end in between, the scheduler deletes it."""
        released = e.CheckpointReleased(node=old.node, step=old.step, key=old.key, reason="replaced")
        dropped = e.CheckpointDropped(node=old.node, step=old.step, key=old.key, reason="replaced")
        record = partial(self._outbox.put, self._claim, [dropped])
        self._outbox.put(self._claim, [released], then=partial(self._saver.delete, self._claim, old.key, record))

    def _is_needed(self, old: e.CheckpointKept) -> bool:
        """Whether another chain begins there, or may do so for all we know."""
        try:
            with self._records.read() as rows:
                live = rows.chains.live(self._claim.stream)
        except (DatabaseUnavailable, LostRace) as problem:
            logger.info("an older intermediate checkpoint stays: %s", problem)
            return True
        return any((row.assignment.get("resume") or {}).get("key") == old.key for row in live)


def kept(node: NodeId, step: int, stored: Stored, *, is_intermediate: bool) -> e.CheckpointKept:
    """The fact that a state is stored."""
    return e.CheckpointKept(
        node=node, step=step, key=stored.key, sha256=stored.sha256, size=stored.size, intermediate=is_intermediate
    )
