"""One slot: a GPU, a share of one, or a share of the CPU. Trains at most one group of chains at a time, while earlier
chains' last checkpoints are uploaded.

The message that begins a stage is a hint; the chain's row is the truth.

Runs on: the thread that trains, which is Celery's own; the heartbeat's calls the last section.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from app.domain.chain_assignment import Unreadable
from app.domain.terms import ChainId
from app.events import ChainFlags, ChainNotClaimable
from app.workers.ownership import Owner
from app.workers.slot.claim import Claim, Claimed, Claimer, NoTrainerProcess
from app.workers.slot.context import Limits, SlotContext, SlotDependencies
from app.workers.slot.gauges import SlotGauges
from app.workers.slot.group import GroupFactory, LaneGroup
from app.workers.slot.heartbeat import Description, Heartbeat, Watchdog
from app.workers.slot.lane import Lane, refuse
from app.workers.slot.lending import Lending
from app.workers.slot.retry import Closing

logger = logging.getLogger(__name__)


class Slot:
    """me: this process's claim to the slot. device: as shown to users."""

    def __init__(self, me: Owner, device: str, dependencies: SlotDependencies, limits: Limits) -> None:
        self._me, self._dependencies, self._limits = me, dependencies, limits
        self._context = SlotContext.create(me, device, dependencies, limits, self._flags)
        retry = self._context.retry
        self._claiming = Claimer(dependencies.records, me, limits.lease, retry)
        self._groups = GroupFactory(self._context)
        self._lending = Lending(self._context, self._is_retiring, self._lose_chains)
        self._current: Sequence[LaneGroup] = ()  # in training, or between two stages
        self._active: Sequence[Lane] = ()  # their lanes; replaced as a whole, like the next field
        self._live: Sequence[Lane] = ()  # and lanes whose checkpoints are being saved
        self._is_closing = False
        self._versions = dict[str, str]()  # of trainers, as they were seen last
        self._gauges = SlotGauges(self._context)
        self._watch = Watchdog(self._context.trainer.kill, retry.close, limits.grace)
        self.heartbeat = Heartbeat(
            me,
            device,
            dependencies.records,
            pulses=lambda: [lane.pulse for lane in self._live],
            describe=self._describe,
            is_retiring=self._is_retiring,
            look=self._look,
            end=dependencies.end,
            clock=dependencies.clock,
            lease_seconds=limits.lease,
            heartbeat_seconds=limits.heartbeat,
            executor=dependencies.executor,
            gauges=lambda: self._gauges.measure([lane.pulse for lane in self._active]),
        )

    def start(self) -> None:
        """Record the slot as free, and keep it alive."""
        self.heartbeat.start()
        self._dependencies.notify()

    def run_stage(self, chain: str, index: int) -> bool:
        """Train one stage of a chain; False if the message is stale or a duplicate, or the chain ended early.

        On False the chain's next message must not be sent. The stages of a pack follow each other without messages.
        """
        lanes = self._claim(chain) if index == 0 else self._active
        if not lanes or lanes[0].claim.chain != chain or not lanes[0].can_begin(index):
            logger.info("stage %s of chain %s is not ours to run", index, chain)
            return False
        is_complete = True
        for group in self._current:
            is_complete &= group.run()
            self._groups.record_outcome(group)
        if not any(group.is_waiting for group in self._current):
            self._current, self._active = (), ()
        self._prune()
        return is_complete

    def run_rank(self, chain: str) -> None:
        """Leave the device to the chain that this slot is lent to; train a rank of it if it is on another machine."""
        self._lending.serve(chain)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all checkpoints are stored and all facts recorded, and return whether they are in time."""
        clock = self._dependencies.executor.now
        ends_at = None if seconds is None else clock() + seconds
        saver, outbox = self._context.saver, self._context.outbox
        while not (saver.is_idle and outbox.is_idle):  # each may give the other work
            for part in (saver, outbox):
                if not part.drain(None if ends_at is None else max(0.0, ends_at - clock())):
                    return False
        return True

    def close(self) -> None:
        """Give back chains that wait for a stage, and end within the grace; unrecorded work is done again."""
        self._is_closing, ends_at = True, self._dependencies.executor.now() + self._limits.grace
        for lane in self._active:
            lane.give_back()
        if not self.drain(self._limits.grace):
            logger.warning("slot %s ends before all was saved: that will be trained again", self._me.slot)
        self.heartbeat.close(max(1.0, ends_at - self._dependencies.executor.now()))
        context = self._context
        context.retry.close()
        for part in (context.saver, context.outbox, context.store):
            part.close()
        context.input_watch.close()
        context.trainer.close()
        context.logs.close()

    # ------------------------------------------------------------------------------------------------ chains

    def _claim(self, chain: str) -> Sequence[Lane]:
        """The lanes of the chain and its pack; empty if they cannot be claimed."""
        if self.heartbeat.is_taken or self._is_retiring():
            return ()
        first = self._claim_chain(chain)
        works = (
            [] if first is None else [first, *(self._claim_chain(other) for other in first.work.pack if other != chain)]
        )
        claimed = [each for each in works if each is not None]
        if claimed and (problem := self._failed_test()) is not None:
            for each in claimed:
                refuse(self._context, each.claim, problem)
            return ()
        if not claimed:  # a chain that waits for its next message keeps waiting
            return ()
        self._current = self._groups.create(claimed)
        self._active = [lane for group in self._current for lane in group.lanes.values()]
        self._live = (*self._live, *self._active)
        self.heartbeat.wake()
        return self._active

    def _failed_test(self) -> str | None:
        """Why the slot is still not well after a quarantine; None if it is well."""
        if not self._context.quarantine.needs_test:
            return None
        try:
            self._context.trainer.check()
        except NoTrainerProcess as problem:
            return str(problem)
        self._context.quarantine.record_test_passed()
        return None

    def _claim_chain(self, chain: str) -> Claimed | None:
        try:
            lease = self._claiming.claim(chain, self._is_retiring)
        except (ChainNotClaimable, Closing) as refused:
            logger.info("chain %s is not claimed: %s", chain, refused or "this worker is to end")
            return None
        claim = Claim(ChainId(lease.chain), lease.stream, lease.fence)
        if isinstance(lease.assignment, Unreadable):
            refuse(self._context, claim, lease.assignment.reason)
            return None
        return Claimed(lease, claim, lease.assignment)

    def _lose_chains(self) -> None:
        """Only a free slot is lent: a chain that still waits here was given up before the heartbeat noticed."""
        for lane in self._active:
            lane.claim.end_flag.set()

    def _prune(self) -> None:
        """Forget the chains that are over."""
        over = [lane for lane in self._live if lane.claim.end_flag.is_set()]
        for lane in over:
            lane.close()
            self._context.logs.end(lane.claim.chain)
        self._live = tuple(lane for lane in self._live if lane not in over)

    # ------------------------------------------------------------------------------- called from other threads

    def _flags(self, chain: str) -> ChainFlags:
        """The scheduler's flags for a chain; everything stops when the worker must end."""
        flags = self.heartbeat.flags.get(chain, ChainFlags())
        return replace(flags, stop=True) if self._is_retiring() else flags

    def _describe(self) -> Description:
        """If the trainers' disk is unavailable, repeat the last versions: chains continue and must keep their
        leases.
        """
        try:
            self._versions = self._context.trainer.versions
        except OSError as problem:
            logger.warning("slot %s cannot see its trainers: %s", self._me.slot, problem)
        return Description(self._versions, self._context.status.text)

    def _is_retiring(self) -> bool:
        return self._is_closing or self._dependencies.is_retiring()

    def _look(self) -> None:
        """End a trainer that should have stopped, and limit its output."""
        self._context.logs.truncate_current()
        self._watch.look(
            self._dependencies.clock(),
            is_retiring=self._is_retiring(),
            is_unwanted=all(lane.is_unwanted for lane in self._active),  # also true without lanes, when nothing is busy
            busy_since=self._context.trainer.busy_since,
            keeps_nothing=all(lane.keeps_nothing for lane in self._active),
        )
