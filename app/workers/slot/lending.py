"""Slots lent to a chain: as the lent slot's own worker sees it, and as the worker that has the chain.

The lent slot's worker ends its own trainer process and records that the device is empty, before the chain starts ranks
there: an idle model would take memory that the rank may need. If the chain's slot is on another machine, the worker
also starts the rank and relays its commands and answers.

The message that a slot is lent is a hint. As long as the rows say so, the worker connects to the chain's slot, and
again each time the ranks were ended.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainId
from app.events import DatabaseUnavailable, RowsPort, SlotLost
from app.outages import LostRace
from app.workers.remote_ranks import RemoteWire, connect_rank
from app.workers.slot.claim import LentSlotsBusy
from app.workers.slot.context import SlotContext
from app.workers.slot.retry import Closing
from app.workers.trainer_client import TrainerClient
from app.workers.warm import WarmFailed
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Message

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often it checks that the slot is still lent."""

RETRY_SECONDS = 0.5
"""Between two connections, as when new ranks are about to begin."""

EMPTY_SECONDS = 60.0
"""A lent slot's worker must leave its device within this time, or the chain is given back and the slot quarantined."""

EMPTY_LOOK_SECONDS = 0.05


class NotLent(Exception):
    """The chain is over, or has other slots."""


def await_members_empty(slot: SlotContext, chain: ChainId, check_wanted: Callable[[], None]) -> None:
    """Wait until the workers of all lent slots have left their devices. An outage of the database extends the time.

    Raises `LentSlotsBusy`, `Closing`, and what `check_wanted` does.
    """
    clock = slot.dependencies.clock
    ends = clock() + EMPTY_SECONDS
    while True:
        check_wanted()
        try:
            with slot.dependencies.records.read() as rows:
                late = _busy_members(rows, chain)
        except (DatabaseUnavailable, LostRace):
            ends = clock() + EMPTY_SECONDS
        else:
            if not late:
                return
            if clock() > ends:
                raise LentSlotsBusy(late)
        slot.retry.pause(EMPTY_LOOK_SECONDS)


def _busy_members(rows: RowsPort, chain: ChainId) -> dict[str, str]:
    """The lent slots, with owners, whose workers have not recorded that the device is empty."""
    row = rows.chains.get(chain)
    members = {} if row is None else row.members
    there = {name: rows.slots.get(name) for name in members}
    is_empty = {name for name, slot in there.items() if slot is not None and slot.emptied_for == chain}
    return {name: owner for name, owner in members.items() if name not in is_empty}


class Lending:
    """is_retiring: whether the worker takes no more work. on_lent: called before it leaves the device."""

    def __init__(self, slot: SlotContext, is_retiring: Callable[[], bool], on_lent: Callable[[], None]) -> None:
        self._slot, self._is_retiring, self._on_lent = slot, is_retiring, on_lent
        self._looked_at = slot.dependencies.clock()

    def serve(self, chain: str) -> None:
        """Leave the device to the chain. If the chain is on another machine, be one of its ranks while it lasts."""
        with suppress(NotLent, Closing):
            self._read_assignment(chain)  # checked first: a late message must not end another chain's model
            self._on_lent()
            self._slot.trainer.close()
            work = self._retry(lambda: self._record_empty(chain))
            while work.meeting and not self._is_retiring():
                try:
                    self._serve_rank(chain, work)
                except (OSError, EOFError, WarmFailed) as problem:
                    logger.info("slot %s as a rank of chain %s: %s", self._slot.me.slot, chain, problem)
                self._slot.retry.pause(RETRY_SECONDS)
                work = self._read_assignment(chain)

    def _read_assignment(self, chain: str) -> ChainAssignment:
        """The chain's assignment. Raises `NotLent`, `Closing`."""
        return self._retry(lambda: self._lent_assignment(chain))

    def _retry(self, do: Callable[[], ChainAssignment]) -> ChainAssignment:
        """Retry during outages of the database. Raises `Closing`."""
        for _ in self._slot.retry.attempts():
            with suppress(DatabaseUnavailable, LostRace):
                return do()
        raise Closing

    def _record_empty(self, chain: str) -> ChainAssignment:
        me = self._slot.me
        try:
            with self._slot.dependencies.records.write() as rows:
                rows.slots.empty(me.slot, me.owner, chain)
        except SlotLost:
            raise NotLent from None
        return self._lent_assignment(chain)

    def _lent_assignment(self, chain: str) -> ChainAssignment:
        me = self._slot.me
        with self._slot.dependencies.records.read() as rows:
            slot, row = rows.slots.get(me.slot), rows.chains.get(chain)
        is_lent = slot is not None and slot.owner == me.owner and slot.lent_to == chain
        if not is_lent or row is None or not isinstance(row.assignment, ChainAssignment):
            raise NotLent
        return row.assignment

    def _serve_rank(self, chain: str, work: ChainAssignment) -> None:
        """Connect once, and be a rank until the other side ends it. Raises OSError, EOFError, `NotLent`."""
        assert work.meeting is not None
        far, lifeline = connect_rank(work.meeting["address"], work.meeting["secret"], self._slot.me.slot)

        def look() -> None:
            now = self._slot.dependencies.clock()
            if now - self._looked_at > LOOK_SECONDS:
                self._looked_at = now
                with suppress(DatabaseUnavailable, LostRace):
                    self._lent_assignment(chain)

        try:
            process = self._start_rank(far, look)
            if process is None:
                return
            try:
                process.leader.relay(far, lifeline, lambda message: self._localize(message, work), look)
            finally:
                process.kill()
                process.close()
        finally:
            far.close()
            lifeline.close()

    def _start_rank(self, far: RemoteWire, look: Callable[[], None]) -> TrainerClient | None:
        """Start this rank's process, which then joins the others; None if it cannot be started."""
        while (arrived := far.receive(RETRY_SECONDS)) is None:
            look()
        message, answer = arrived[0], dict[str, Any]()
        try:
            process = self._slot.dependencies.start(rank=message["ranks"])
        except TrainerFailed as failed:
            answer = {"failed": failed.kind, "error": failed.error, "signature": failed.signature}
            far.send({"number": message["number"], "step": 0, **answer}, timeout=LOOK_SECONDS)
            return None
        far.send({"number": message["number"], "step": 0, "done": "start"}, timeout=LOOK_SECONDS)
        return process

    def _localize(self, message: Message, work: ChainAssignment) -> Message:
        """A command with this machine's path of the trainer. Raises `NotLent` if this machine has other code."""
        if message.get("do") != "build":
            return message
        source = self._slot.dependencies.sources().get(work.trainer)
        if source is None or source.version != work.trainer_version:
            raise NotLent
        return {**message, "file": source.path}
