"""Keeps a slot's row and leases alive, reads what the scheduler wants of its chains, and kills overdue trainers.

It reads values that the slot replaces as a whole, and writes `flags`, `is_taken` and a claim's `end_flag`. It continues
if the database fails.

Runs on: the heartbeat's thread.
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
"""How often flags are read while a chain trains; otherwise at each beat."""

POLL_DUTY = 0.01
"""The share of its time for reading flags: a slow database is read less often."""

STOP_SECONDS = 5.0
"""How long an ending worker waits for a trainer's call; at most a third of its grace."""

UNWANTED_SECONDS = 30.0
"""How long it waits if only the result is not needed."""

UNSAVED_SECONDS = 2.0
"""How long it waits if nothing is saved: about as long as a new process and its model take."""


MAX_LOST_MESSAGES = 2
"""A chain was sent this often to an idle slot that never began it: messages do not arrive."""


@dataclass(frozen=True, slots=True)
class Description:
    """The report of a slot: the version of each trainer, and the reason why it waits, if it does."""

    trainers: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


class Heartbeat:
    """pulses: of the live chains.
    describe: the slot's description.
    gauges: what the slot measures for its row, see `app.workers.slot.gauges`.
    is_retiring: whether it takes no more chains.
    look: called in each round.
    end: called when this worker can no longer be the slot: another one has it, or messages do not arrive.
    clock: monotonic.
    flags: what the scheduler wants of each chain.
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
        gauges: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._me, self._device, self._records, self._gauges = me, device, records, gauges
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
        """Record the slot as soon as the database answers, and keep it alive."""
        self.round()
        self._task = self._executor.spawn("heartbeat", self._run)

    def wake(self) -> None:
        """A chain begins: look now, and often while one is live."""
        self._woken.set()

    def close(self, seconds: float) -> None:
        """Delete the slot's row, if the database answers in time."""
        self._is_closed = True
        self._woken.set()
        if self._task is not None and self._task.is_alive():
            self._task.join(seconds)
        else:  # without a thread, rounds are called from outside
            self.round()

    def round(self) -> None:
        """Do everything that is due."""
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
        """Retiring is due at once."""
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
            except Exception:  # a slot without a heartbeat is dead, so the next round must come
                logger.exception("a round of the heartbeat of slot %s failed", self._me.slot)

    def _pause(self) -> float:
        """Until the next round; until the next beat if no chain is live."""
        if self._pulses() or self._is_away or self._is_retiring():
            return FLAG_SECONDS
        return max(FLAG_SECONDS, self._beat_at + self._heartbeat_seconds - self._clock())

    # ------------------------------------------------------------------------------------------------ the slot's row

    def _beat(self) -> None:
        gauges = self._gauges()
        try:
            with self._records.write() as rows:
                self._touch_row(rows, gauges)
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

    def _touch_row(self, rows: RowsPort, gauges: Mapping[str, float]) -> None:
        """Keep the slot's row, or take it again if it is gone. Raises `SlotTaken`."""
        me, description = self._me, self._describe()
        if self._is_retiring():
            rows.slots.retire(me.slot, me.owner)
            self._is_retired = True
            return
        try:
            row = rows.slots.touch(me.slot, me.owner, gauges)
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
        """The chains that are still ours, as far as known here."""
        return [pulse for pulse in self._pulses() if not pulse.claim.end_flag.is_set()]

    def _give_up_waiting(self, pulse: Pulse) -> None:
        """End a chain whose next message has not come for a whole lease. If it comes now, it is stale."""
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
        """Read the flags of the chains without renewing their leases."""
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
        """The row says that the chain is not ours; we may just have recorded its end ourselves."""
        lost = "chain %s is given up: it is over, another worker's, or has lost reports"
        logger.info(lost, claim.chain, extra=claim.log_fields)
        claim.end_flag.set()


class _LostMessages:
    """Counts messages that the broker took for this slot and that never arrived.

    A worker may be deaf despite its heartbeat: it is sent one chain after the other and begins none.
    """

    def __init__(self) -> None:
        self._chain, self._at, self._is_reported = "", set[float](), False

    def have_grown(self, waiting: ChainRecord | None) -> bool:
        """True once for each chain. waiting: the chain that the slot was given but has not begun."""
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
    """kill: ends the trainer's process. give_up: stops all waiting, `grace` seconds after the end was due."""

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
        """Called several times a second. busy_since: when the trainer's current call began.

        keeps_nothing: whether nothing is saved when it is stopped.
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
    """Since when a condition holds; None if it does not."""
    if not holds:
        return None
    return now if before is None else before
