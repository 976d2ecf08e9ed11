"""Runs on: the heartbeat's thread.

Shows that a slot is alive, renews the leases of its chains, learns what the scheduler wants of them, and ends what does
not end by itself once it should. It reads what the slot publishes, each value whole, and writes `flags`, `is_taken` and
a claim's `over`. Whatever the database does, it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from app.domain.terms import ChainState
from app.events import ChainFlags, ChainRecord, DatabaseUnavailable, Fenced, Records, RowsPort, SlotLost, SlotTaken
from app.outages import LostRace
from app.workers.ownership import Owner
from app.workers.slot.claim import Claim, Pulse
from app.workers.slot.retry import Clock, Instant
from app.workers.threads import THREADS, Executor, Task

logger = logging.getLogger(__name__)

FLAG_SECONDS = 0.25
"""How often it looks whether the scheduler wants something of the chain in training; without one, at each beat."""

POLL_DUTY = 0.01
"""The share of its time that it may take to look: a slow database is looked at less often."""

STOP_SECONDS = 5.0
"""A worker that must end waits so long for a call of the trainer; no longer than a third of its grace."""

UNWANTED_SECONDS = 30.0
"""And so long where only nobody wants the result any more."""

UNSAVED_SECONDS = 2.0
"""Or, where nothing of it is kept, about as long as a new process and its model take."""


MAX_LOST_MESSAGES = 2
"""A chain that the broker took so often after it was given to an idle slot, and that was not begun, does not arrive."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a slot says of itself: which version of each trainer it has, and what it waits for, if it does."""

    trainers: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


class Heartbeat:
    """pulses: the chains that are alive. describe: what the slot says of itself. is_retiring: whether it takes no more.

    look: called in each round. end: called when this worker can be the slot no more: another one has it, or no message
    reaches this one. clock: any that does not go back. flags: what the scheduler wants of each chain.
    """

    def __init__(
        self,
        me: Owner,
        device: str,
        records: Records,
        *,
        pulses: Callable[[], Sequence[Pulse]],
        describe: Callable[[], Description],
        is_retiring: Callable[[], bool],
        look: Callable[[], None],
        end: Callable[[str], None],
        clock: Clock,
        lease_seconds: float,
        heartbeat_seconds: float,
        executor: Executor = THREADS,
    ) -> None:
        self._me, self._device, self._records = me, device, records
        self._pulses, self._describe, self._is_retiring = pulses, describe, is_retiring
        self._look, self._end, self._clock = look, end, clock
        self._lease_seconds, self._heartbeat_seconds = lease_seconds, heartbeat_seconds
        self.flags: Mapping[str, ChainFlags] = {}
        self.is_taken = False
        self._sent_description: Description | None = None
        self._lost_messages = _LostMessages()
        self._is_away = self._is_retired = False
        self._beat_at = -heartbeat_seconds
        self._look_again_at = -inf
        self._executor, self._woken, self._is_closed = executor, executor.flag(), False
        self._task: Task | None = None

    def start(self) -> None:
        """Put the slot on record as soon as the database answers, and keep it there."""
        self.round()
        self._task = self._executor.spawn("heartbeat", self._run)

    def wake(self) -> None:
        """A chain begins: look at once, and often as long as there is one."""
        self._woken.set()

    def close(self, seconds: float) -> None:
        """Take the slot off the record, if the database answers within so many seconds."""
        self._is_closed = True
        self._woken.set()
        if self._task is not None and self._task.is_alive():
            self._task.join(seconds)
        else:  # each round is somebody else's to call
            self.round()

    def round(self) -> None:
        """Do what is due now."""
        self._look()
        if self.is_taken:
            return
        try:
            if self._is_due():
                self._beat()
            elif self._clock() >= self._look_again_at:
                self._poll()
        except (DatabaseUnavailable, LostRace) as problem:
            if not self._is_away:
                logger.warning("slot %s cannot be heard of: %s", self._me.slot, problem)
            self._is_away = True
        else:
            self._is_away = False

    def _is_due(self) -> bool:
        """To leave is due at once."""
        is_leaving = self._is_retiring() and not self._is_retired
        return is_leaving or self._clock() - self._beat_at >= self._heartbeat_seconds

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._woken.wait(self._pause())
            self._woken.clear()
            is_last = self._is_closed
            try:
                self.round()
            except Exception:  # a slot without a heartbeat is dead; whatever this was, the next round may be better
                logger.exception("a round of the heartbeat of slot %s failed", self._me.slot)

    def _pause(self) -> float:
        """Until the next round: as there is nothing to stop where no chain is, until the next beat."""
        if self._pulses() or self._is_away or self._is_retiring():
            return FLAG_SECONDS
        return max(FLAG_SECONDS, self._beat_at + self._heartbeat_seconds - self._clock())

    # ------------------------------------------------------------------------------------------------ the slot's row

    def _beat(self) -> None:
        try:
            with self._records.write() as rows:
                self._touch_row(rows)
        except SlotTaken as taken:
            self._yield_slot(taken)
            return
        except (DatabaseUnavailable, LostRace):
            self._sent_description, self._is_retired = None, False  # it is not on record
            raise
        flags = dict[str, ChainFlags]()
        for pulse in self._live():
            self._give_up_waiting(pulse)
            if not pulse.claim.end_flag.is_set():
                self._renew(pulse, flags)
        self.flags, self._beat_at = flags, self._clock()

    def _touch_row(self, rows: RowsPort) -> None:
        """Be the slot's worker, as before, or again if its row is gone. Raises `SlotTaken`."""
        me, description = self._me, self._describe()
        if self._is_retiring():
            rows.slots.retire(me.slot, me.owner)
            self._is_retired = True
            return
        try:
            row = rows.slots.touch(me.slot, me.owner)
        except SlotLost:
            if not me.take(rows, self._device):
                return
            taken = rows.slots.get(me.slot)
            assert taken is not None  # it is ours
            self._sent_description, row = None, taken
        if description != self._sent_description or dict(row.trainers) != dict(description.trainers):
            rows.slots.describe(me.slot, me.owner, trainers=description.trainers, note=description.note)
        self._sent_description = description
        waiting = rows.chains.get(row.chain) if row.chain and not self._live() else None
        if self._lost_messages.have_grown(waiting):
            self._end(f"slot {me.slot} was sent chain {row.chain} again and again, and nothing arrives here")

    def _yield_slot(self, error: SlotTaken) -> None:
        self.is_taken = True
        for pulse in self._pulses():
            pulse.claim.end_flag.set()
        self._end(str(error))

    # ------------------------------------------------------------------------------------------------ its chains

    def _live(self) -> list[Pulse]:
        """Of the chains that are still ours, as far as is known here."""
        return [pulse for pulse in self._pulses() if not pulse.claim.end_flag.is_set()]

    def _give_up_waiting(self, pulse: Pulse) -> None:
        """The next message did not come for as long as a lease lasts. If it does now, it is stale."""
        if pulse.waits_since is not None and self._clock() - pulse.waits_since > self._lease_seconds:
            waited = "chain %s waited in vain for the message that begins its next stage"
            logger.warning(waited, pulse.claim.chain, extra=pulse.claim.log_fields)
            pulse.claim.end_flag.set()

    def _renew(self, pulse: Pulse, flags: dict[str, ChainFlags]) -> None:
        claim = pulse.claim
        try:
            with self._records.write() as rows:
                chain, fence, ttl = claim.chain, claim.fence, self._lease_seconds
                flags[chain] = rows.chains.heartbeat(chain, fence, ttl, pulse.step, pulse.kept)
        except Fenced:
            self._lose(claim)

    def _poll(self) -> None:
        """What is wanted of the chains now, without renewing anything."""
        begun_at, flags = self._clock(), dict[str, ChainFlags]()
        live = self._live()
        if live:
            with self._records.read() as rows:
                for claim in (pulse.claim for pulse in live):
                    try:
                        flags[claim.chain] = rows.chains.flags(claim.chain, claim.fence)
                    except Fenced:
                        self._lose(claim)
        self.flags, now = flags, self._clock()
        self._look_again_at = now + (now - begun_at) / POLL_DUTY

    def _lose(self, claim: Claim) -> None:
        """Its row says that it is not ours. It may be that we have just said its last word ourselves."""
        logger.info("chain %s is given up: it is over, or another worker's", claim.chain, extra=claim.log_fields)
        claim.end_flag.set()


class _LostMessages:
    """The messages that the broker took for this slot, and that did not arrive, as far as it shows in the database.

    A worker may be deaf, whatever its heartbeat says: it is sent one chain after the other, and none of them is begun.
    """

    def __init__(self) -> None:
        self._chain, self._at, self._is_reported = "", set[float](), False

    def have_grown(self, waiting: ChainRecord | None) -> bool:
        """True once. waiting: the chain that the slot was given; None where it has begun it, or has none."""
        if waiting is None or waiting.state != ChainState.READY:
            self._chain = ""
            return False
        if waiting.chain != self._chain:
            self._chain, self._at, self._is_reported = waiting.chain, set(), False
        self._at.add(waiting.dispatched_at)
        is_news = len(self._at) > MAX_LOST_MESSAGES and not self._is_reported
        self._is_reported |= is_news
        return is_news


class Watchdog:
    """kill: ends the trainer's process. give_up: makes everybody stop waiting, `grace` seconds after all should end."""

    def __init__(self, kill: Callable[[], None], give_up: Callable[[], None], grace: float) -> None:
        self._kill, self._give_up, self._grace = kill, give_up, grace
        self._stop_seconds = min(STOP_SECONDS, grace / 3)
        self._retiring_since: Instant | None = None
        self._unwanted_since: Instant | None = None

    def look(
        self,
        now: Instant,
        *,
        is_retiring: bool,
        is_unwanted: bool,
        busy_since: Instant | None,
        keeps_nothing: bool,
    ) -> None:
        """Called several times a second. busy_since: when the call of the trainer that is under way began.

        keeps_nothing: whether nothing of it is saved when it is stopped.
        """
        unwanted_seconds = UNSAVED_SECONDS if keeps_nothing else UNWANTED_SECONDS
        stop_seconds = 0.0 if keeps_nothing else self._stop_seconds
        self._retiring_since = _update_since(self._retiring_since, now, is_retiring)
        self._unwanted_since = _update_since(self._unwanted_since, now, is_unwanted)
        if busy_since is not None:
            limits = ((self._retiring_since, stop_seconds), (self._unwanted_since, unwanted_seconds))
            if any(since is not None and now - max(since, busy_since) > seconds for since, seconds in limits):
                self._kill()
        if self._retiring_since is not None and now - self._retiring_since > self._grace:
            self._give_up()


def _update_since(before: Instant | None, now: Instant, holds: bool) -> Instant | None:
    """Since when something holds; None if it does not."""
    if not holds:
        return None
    return now if before is None else before
